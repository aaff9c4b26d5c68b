"""Those who listen to a peer: a terminal, the parent process of a swarm, a program, a test."""

from typing import Protocol

from troth.events.kinds import Stepped
from troth.protocol.core.records import StepRecord


class EventSink(Protocol):
    """Takes events, in the peer's thread; notes from any thread."""

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        """A step has ended, with this record."""

    def note(self, text: str) -> None:
        """One line for people."""
