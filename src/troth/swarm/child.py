"""One process of a swarm: a peer that reports to its parent."""

import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch

from troth.errors import OperatorError
from troth.events import kinds
from troth.network.manifest.consent import agree_here
from troth.network.manifest.manifest import Manifest
from troth.network.node.node import BannedError, Node
from troth.network.node.options import NodeOptions
from troth.network.node.telling.log import LogFile
from troth.protocol.core.records import StepRecord, encode_record
from troth.protocol.recovery.member import RemovedError
from troth.swarm.factories import LiarFactory, RehearsalFactory
from troth.swarm.plan import SwarmPlan, folder_of


class Note(msgspec.Struct, frozen=True, tag=True):
    """A line for people."""

    peer: int
    text: str


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """A step has ended."""

    peer: int
    event: kinds.Stepped
    record: bytes


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The peer has ended."""

    peer: int
    how: str  # "done", "out", or the error
    step: int = 0
    state: bytes = b""  # digest of model and optimizer


Trace = Note | Stepped | Ended


class _Reporter:
    """Sends everything to the parent; the node itself keeps the log."""

    def __init__(self, peer: int, parent: Connection) -> None:
        self._peer = peer
        self._parent = parent
        self._lock = threading.Lock()  # notes come from several threads

    def send(self, trace: Trace) -> None:
        try:
            with self._lock:
                self._parent.send_bytes(msgspec.msgpack.encode(trace))
        except OSError:  # the parent is gone, and so is the swarm
            raise KeyboardInterrupt from None

    def stepped(self, event: kinds.Stepped, record: StepRecord) -> None:
        self.send(Stepped(self._peer, event, encode_record(record)))

    def note(self, text: str) -> None:
        self.send(Note(self._peer, text))


def live(
    plan_raw: bytes,
    manifest_raw: bytes,
    manifest_folder: str,
    out: str,
    number: int,
    parent: Any,
    evaluate_every: int,
    threads: int,
    agreed: tuple[str, ...] = (),
) -> None:
    """The process's main function. Plans and manifests travel as bytes: nothing is unpickled but that. `agreed`: code that the
    person who started the swarm agreed to run."""
    agree_here(*agreed)
    folder = folder_of(Path(out), number)
    folder.mkdir(parents=True, exist_ok=True)
    _redirect_output(folder / "output.txt")
    log = LogFile(folder / "log.txt")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and asks us to stop
    reporter, stop = _Reporter(number, parent), _Stop()
    try:
        signal.signal(signal.SIGTERM, stop)
        torch.set_num_threads(threads)
        plan = msgspec.json.decode(plan_raw, type=SwarmPlan)
        try:
            manifest = Manifest.from_bytes(manifest_raw, Path(manifest_folder))
            _train(plan, manifest, folder, number, reporter, evaluate_every)
        except (BannedError, RemovedError) as why:
            log.write(str(why))
            reporter.send(Ended(number, "out"))
        except OperatorError as error:
            log.write(f"ended: {error}")
            reporter.send(Ended(number, str(error)))
        except Exception as error:
            log.write(f"ended by an error: {type(error).__name__}: {error} (see output.txt)")
            traceback.print_exc()
            reporter.send(Ended(number, f"{type(error).__name__}: {error}"))
        stop.late = True
    except KeyboardInterrupt:
        stop.late = True
        log.write("stopped with the swarm")
        sys.exit(143)


def _redirect_output(file: Path) -> None:
    """Output of libraries, and tracebacks."""
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _train(
    plan: SwarmPlan, manifest: Manifest, folder: Path, number: int, reporter: _Reporter, evaluate_every: int
) -> None:
    identity = plan.identities()[number]
    factory = LiarFactory(plan, number) if number in plan.liars else RehearsalFactory(plan, number)
    founder = manifest.founder(identity.peer)
    assert founder is not None
    manifest_file = str(folder.parent / "run.toml")
    options = NodeOptions(folder, listen=founder.address, evaluate_every=evaluate_every, manifest_file=manifest_file)
    node = Node(manifest, identity, options, reporter, factory)
    state = node.live()
    reporter.send(Ended(number, "done", state.step, node.work.digest(state.training)))


class _Stop:
    """SIGTERM from the parent. Once the peer has ended, or was stopped, there is nothing left to interrupt but the interpreter's
    way out, which would print a traceback."""

    def __init__(self) -> None:
        self.late = False

    def __call__(self, *_: Any) -> None:
        if not self.late:
            self.late = True
            raise KeyboardInterrupt
