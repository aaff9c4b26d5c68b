"""Many peers in one process, each a coroutine of its own, advanced together.

A peer runs until it asks for something from outside. When all are waiting, their questions are answered together: one
batched gradient call for all who asked for a gradient, one exchange for all who announced. Nothing else is shared.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from troth.crypto import PeerId
from troth.protocol.core.errors import CannotGoOnError

R = TypeVar("R")


class Ask:
    """A question to the world outside; awaiting it gives the answer."""

    def __await__(self) -> Generator["Ask", Any, Any]:
        return (yield self)


Answer = Callable[[Mapping[PeerId, Ask]], Mapping[PeerId, Any]]


@dataclass
class Ended(Generic[R]):
    """How each coroutine ended."""

    results: dict[PeerId, R] = field(default_factory=dict)
    stopped: dict[PeerId, CannotGoOnError] = field(default_factory=dict)  # peers that did not get to the end, and why


def run_together(peers: Mapping[PeerId, Coroutine[Ask, Any, R]], answer: Mapping[type[Ask], Answer]) -> Ended[R]:
    """Advance all coroutines to their end. Kinds of questions are answered in the order of the `answer` table.

    A kind is answered when all peers that can still ask it have: gradients before announcements, so that validators,
    which compute none, wait for contributors.
    """
    waiting: dict[PeerId, Ask] = {}
    ended: Ended[R] = Ended()

    def advance(peer: PeerId, value: Any) -> None:
        try:
            waiting[peer] = peers[peer].send(value)
        except StopIteration as stop:
            ended.results[peer] = stop.value
        except CannotGoOnError as why:
            ended.stopped[peer] = why

    try:
        for peer in peers:
            advance(peer, None)
        while waiting:
            kind = next(kind for kind in answer if any(isinstance(ask, kind) for ask in waiting.values()))
            asked = {peer: ask for peer, ask in waiting.items() if isinstance(ask, kind)}
            for peer in asked:
                del waiting[peer]
            for peer, value in answer[kind](asked).items():
                advance(peer, value)
    finally:
        for coroutine in peers.values():
            coroutine.close()
    return ended
