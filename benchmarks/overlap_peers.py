"""The processes that `benchmarks.overlap` and `benchmarks.slow_lines` time, each in a network namespace of its own."""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.network_peers import Stopwatch, TimedChannel, bare
from benchmarks.processes import own_manifest
from troth.crypto import Identity, Seed, stream
from troth.events.kinds import Stepped
from troth.network.manifest.manifest import Manifest
from troth.network.node.ahead import GradientsAhead
from troth.network.node.node import Node, PeerFactory
from troth.network.node.options import NodeOptions
from troth.protocol.core.records import StepRecord
from troth.protocol.recovery.builder import PeerBuilder
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem
from troth.training.user_code import check_wanted
from troth.training.work import Training, TrainingWork
from troth.workshop.swarm_peers import live

# D coordinates

GRADIENT_S, LAYERS = 1.0, 20
_CLONE_NEWNET = 0x40000000


class SleepingWork(TrainingWork):
    """Gradients are slices of one table of noise. Each takes a second in which the processor is free, as on an accelerator, in
    twenty layers between which it can be left off."""

    table_D: Tensor

    def gradient_now(self, training: Training, seed: Seed) -> Tensor:
        for _ in range(LAYERS):
            check_wanted()
            time.sleep(GRADIENT_S / LAYERS)
        start = int.from_bytes(seed[:2], "big")
        return self.table_D[start : start + len(training.parameters_D)]


class _Factory(PeerFactory):
    def __init__(self, size: int, watch: Stopwatch, *, looks_ahead: bool) -> None:
        self._size = size
        self._watch = watch
        self._looks_ahead = looks_ahead

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        work = SleepingWork(problem, manifest.make_optimizer(), manifest.rates(), tools)
        noise_D = stream(0, "benchmark", "noise").uniform(self._size + (1 << 16)) - 0.5
        work.table_D = torch.from_numpy(noise_D).float() / self._size**0.5
        return work

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        return GradientsAhead(work, allowed_s if self._looks_ahead else None)

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        return replace(ports, outside=lambda channel, _key: TimedChannel(channel, self._watch))


@dataclass
class _Reporter:
    parent: Connection
    watch: Stopwatch

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        self.watch.lap("the rest of the step")
        self.parent.send((event.step + 1, time.monotonic(), event.attempts, self.watch.take()))

    def note(self, text: str) -> None:
        print(text, flush=True)


def troth_peer(namespace: str, raw: bytes, secret: bytes, folder: str, looks_ahead: bool, parent: Connection) -> None:
    """A `Node` as `troth join` runs it; tells the end of every step."""
    enter(namespace)
    log = os.open(Path(folder).with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    manifest, identity, watch = own_manifest(raw), Identity.from_secret(Seed(secret)), Stopwatch()
    founder = manifest.founder(identity.peer)
    assert founder is not None
    options = NodeOptions(Path(folder), listen=founder.address, evaluate_every=1 << 30)
    factory = _Factory(manifest.parameters.size, watch, looks_ahead=looks_ahead)
    Node(manifest, identity, options, _Reporter(parent, watch), factory).live()
    parent.send(None)


def butterfly_peer(
    namespace: str, rank: int, peers: int, size: int, rounds: int, listen: str, barrier: Any, parent: Connection
) -> None:
    """A gradient that sleeps as long, then scatter, average, gather: nothing checked."""
    enter(namespace)
    torch.set_num_threads(1)
    parent.send(asyncio.run(bare(rank, peers, size, rounds, barrier, parent, listen, GRADIENT_S)))


def swarm_peer(namespace: str, plan: bytes, manifest: bytes, out: str, number: int, parent: Connection) -> None:
    """A peer as `troth swarm` runs it, with the coins of a simulation of the same seed."""
    enter(namespace)
    live(plan, manifest, ".", out, number, parent, evaluate_every=1 << 30, threads=1)


def enter(namespace: str) -> None:
    """Move this process, which has one thread still, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
    try:
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    finally:
        os.close(handle)
