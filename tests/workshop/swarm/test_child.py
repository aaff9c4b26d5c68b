"""A process of a swarm that its parent asks to stop: it leaves without a traceback, whenever that comes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from troth.protocol.recovery.member import RemovedError
from troth.workshop import swarm_peers
from troth.workshop.swarm_peers import ChildEnded, SwarmPlan, Trace, folder_of, rehearsal

PLAN = SwarmPlan(peers=4)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted() -> bool:
    """Ask to stop, once more or too late; pytest itself would be stopped by what must not happen."""
    try:
        terminate()
    except KeyboardInterrupt:
        return True
    return False


class Node:
    """A node that has nothing to do."""

    work = SimpleNamespace(digest=lambda _: b"")

    def __init__(self, *_: Any) -> None:
        pass

    def live(self) -> Any:
        return SimpleNamespace(step=3, training=None)


class Refused(Node):
    def live(self) -> Any:
        raise RemovedError("this peer was expelled")


class Parent:
    """The pipe to a parent that asks its children to stop as soon as one of them has ended."""

    def __init__(self) -> None:
        self.heard: list[Trace] = []

    def send_bytes(self, raw: bytes) -> None:
        self.heard.append(msgspec.msgpack.decode(raw, type=Trace))
        terminate()


class Patient(Parent):
    def send_bytes(self, raw: bytes) -> None:
        self.heard.append(msgspec.msgpack.decode(raw, type=Trace))


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a process of its own would have: signals, threads, and standard output, which stays that of the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(swarm_peers, "_redirect_output", lambda _: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr(swarm_peers, "Node", Node)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def live(out: Path, parent: Parent) -> None:
    manifest = rehearsal(PLAN, "quadratic:dimension=40")
    swarm_peers.live(msgspec.json.encode(PLAN), manifest.to_toml().encode(), str(out), str(out), 0, parent, 10, 1)


def test_it_has_ended(tmp_path: Path) -> None:
    """The parent stops all once they are done: this one is on its way out."""
    parent = Patient()
    live(tmp_path, parent)
    assert not interrupted()
    assert parent.heard == [ChildEnded(0, "done", 3, b"")]


@pytest.mark.parametrize("node", [Node, Refused], ids=["done", "out"])
def test_it_says_that_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: type[Node]) -> None:
    monkeypatch.setattr(swarm_peers, "Node", node)
    parent = Parent()
    with pytest.raises(SystemExit) as left:
        live(tmp_path, parent)
    assert left.value.code == 143
    assert not interrupted(), "once more, while the interpreter ends"
    assert len(parent.heard) == 1
    assert (folder_of(tmp_path, 0) / "log.txt").read_text().endswith("stopped with the swarm\n")
