"""Another peer, as the mesh sees it: its connection, its standing, and messages that wait until it is connected again."""

import time
from collections import deque
from dataclasses import dataclass, field

from troth.network.mesh.session import NOWHERE, Standing
from troth.network.transport.base import Connection, Lane

_MOST_HELD = 1 << 23  # bytes for one neighbour that is not connected


@dataclass
class Neighbour:
    """A member, or the successor of one, connected or not."""

    address: str
    connection: Connection | None = None
    standing: Standing = NOWHERE
    lost_at: float = field(default_factory=time.monotonic)
    lost: bool = False  # it was connected, and is not any more
    gone: bool = False  # and dialling it again has failed since
    trouble: str = "not reached yet"  # why it is not connected
    _held: deque[tuple[float, Lane, bytes]] = field(default_factory=deque)
    _held_bytes: int = 0

    @property
    def up(self) -> bool:
        return self.connection is not None

    def connect(self, connection: Connection) -> None:
        self.connection, self.lost, self.gone = connection, False, False

    def lose(self) -> None:
        self.connection, self.lost_at, self.lost, self.trouble = None, time.monotonic(), True, "lost"

    def hold(self, lane: Lane, message: bytes) -> None:
        """Keep a message until it is connected again, within a bound: beyond it, messages are dropped."""
        if self._held_bytes + len(message) <= _MOST_HELD:
            self._held.append((time.monotonic(), lane, message))
            self._held_bytes += len(message)

    def release(self, since: float) -> list[tuple[Lane, bytes]]:
        """The messages that were held since then; older ones are dropped."""
        fresh = [(lane, message) for when, lane, message in self._held if when >= since]
        self._held.clear()
        self._held_bytes = 0
        return fresh
