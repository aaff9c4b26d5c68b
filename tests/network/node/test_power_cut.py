"""A power cut for all members of a run with a large model, between two saves of it (SPEC B5, B6)."""

import dataclasses
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.network.node.test_node import free_address
from troth.crypto import Identity, Seed, derive
from troth.events.kinds import Stepped
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.node.node import Node
from troth.network.node.options import NodeOptions
from troth.protocol.core.records import StepRecord

SECRETS = sorted((derive(0, "power cut", k) for k in range(4)), key=lambda secret: Identity.from_secret(secret).peer)
IDS = [Identity.from_secret(secret) for secret in SECRETS]
_PATIENCE_S = 240.0
STEPS, CUT_AFTER, EVERY = 9, 5, 1000  # nobody saves the model before the end, unless it has to


class _Told:
    def __init__(self, parent: Connection) -> None:
        self._parent = parent

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        self._parent.send(event.step + 1)

    def note(self, text: str) -> None: ...


def _peer(raw: bytes, secret: bytes, folder: str, parent: Connection) -> None:
    manifest, identity = Manifest.from_bytes(raw, Path()), Identity.from_secret(Seed(secret))
    founder = manifest.founder(identity.peer)
    assert founder is not None
    options = NodeOptions(Path(folder), listen=founder.address, evaluate_every=1 << 30)
    with patch("troth.network.disk.checkpoints._SMALL", 0):  # this model counts as large
        node = Node(manifest, identity, options, _Told(parent))
        parent.send(("ended", node.work.digest(node.live().training)))


@contextmanager
def _started(raw: bytes, folder: Path) -> Iterator[tuple[list[BaseProcess], list[Connection]]]:
    context, processes, pipes = get_context("spawn"), list[BaseProcess](), list[Connection]()
    try:
        for number, secret in enumerate(SECRETS):
            mine, theirs = context.Pipe()
            arguments = raw, secret, str(folder / str(number)), theirs
            process: BaseProcess = context.Process(target=_peer, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(mine)
        yield processes, pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.long
@pytest.mark.parametrize("local_steps", [1, 4])
def test_after_a_power_cut_for_all_the_run_goes_on_from_the_last_certified_record(
    tmp_path: Path, local_steps: int
) -> None:
    """[B5, B6, R2] Nobody saved the model: each makes it again from its aggregates, and no update is lost."""
    founders = tuple(Founder(f"peer{k}", one.peer, free_address()) for k, one in enumerate(IDS))
    options = ManifestOptions(steps=STEPS, delta_s=2.0, compute_s=5.0, bulk_s=2.0, local_steps=local_steps)
    manifest = build_manifest("quadratic:dimension=4096", founders, options).manifest
    parameters = dataclasses.replace(manifest.parameters, content_every=EVERY)
    raw = dataclasses.replace(manifest, parameters=parameters).to_toml().encode()
    with _started(raw, tmp_path) as (processes, pipes):
        for pipe in pipes:
            while _told(pipe) < CUT_AFTER:
                pass
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
    assert list(tmp_path.glob("*/checkpoints/*.safetensors")) == []
    assert all(len(list(tmp_path.glob(f"{k}/checkpoints/*.aggregate"))) >= CUT_AFTER - 1 for k in range(len(IDS)))
    steps, ends = set[int](), set[bytes]()
    with _started(raw, tmp_path) as (_, pipes):
        for pipe in pipes:
            told, end = _until_the_end(pipe)
            steps |= set(told)
            ends.add(end)
    assert min(steps) >= CUT_AFTER, "from where it was cut"
    assert len(ends) == 1
    assert all((tmp_path / str(number) / "model.json").exists() for number in range(len(IDS)))


def _told(pipe: Connection) -> Any:
    assert pipe.poll(_PATIENCE_S), "the run does not go on"
    return pipe.recv()


def _until_the_end(pipe: Connection) -> tuple[list[int], bytes]:
    """Steps that a peer told, and the digest of its last state."""
    steps: list[int] = []
    while True:
        told = _told(pipe)
        if isinstance(told, tuple):
            return steps, told[1]
        steps.append(told)
