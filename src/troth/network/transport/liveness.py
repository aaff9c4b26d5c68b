"""Whether the other side of a connection is still there, and whether its message moves. The clock is passed in."""

from dataclasses import dataclass

from troth.network.transport.base import SLOWEST_BYTES_PER_SECOND, Limits
from troth.network.transport.framing import PING

_MOST_PINGS = 64  # at once; and over the life of the connection, twenty times as many as we would send


@dataclass(frozen=True)
class Fault:
    """A reason to hang up."""

    why: str
    misbehaved: bool  # or else it is only gone


class Liveness:
    """Counts what the other side sends. While we do not read, nothing is held against it."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.tick_every_s = min(limits.ping_s, limits.idle_s / 4) / 2
        self._limits = limits
        self._made_at = self._heard_at = self._window_at = self._ticked_at = now
        self._window_bytes = 0  # since `_window_at`, without pings
        self._pings = 0

    def heard(self, count: int, now: float) -> None:
        self._heard_at = now
        self._window_bytes += count

    def pinged(self) -> None:
        """One of the frames just heard was a ping, which says that the other side lives and not that its message moves."""
        self._pings += 1
        self._window_bytes -= len(PING)

    @property
    def too_many_pings(self) -> bool:
        return self._pings > _MOST_PINGS + 20 * (self._heard_at - self._made_at) / self._limits.ping_s

    def read_again(self, now: float) -> None:
        """We have not read for a while, and do so from now on."""
        self._heard_at = self._window_at = now
        self._window_bytes = 0

    def tick(self, now: float) -> None:
        """Called every `tick_every_s`. If it comes late, we were not there to hear; the delay is not held against anybody."""
        held_up = now - self._ticked_at - self.tick_every_s
        self._ticked_at = now
        if held_up > self.tick_every_s / 2:
            self._heard_at = min(now, self._heard_at + held_up)
            self._window_at = min(now, self._window_at + held_up)

    def check(self, now: float, *, assembling: bool) -> Fault | None:
        """`assembling`: a message is under way, so bytes have to arrive, or a peer could hold memory for ever by trickling."""
        idle_s, fault = self._limits.idle_s, None
        if now - self._heard_at >= idle_s:
            return Fault(f"not heard for {idle_s:g} s", misbehaved=False)
        window_s = now - self._window_at
        if assembling and window_s < idle_s:
            return None
        if assembling and self._window_bytes < SLOWEST_BYTES_PER_SECOND * window_s:
            fault = Fault(f"let a message trickle: {self._window_bytes} bytes in {idle_s:g} s", misbehaved=True)
        self._window_at, self._window_bytes = now, 0
        return fault
