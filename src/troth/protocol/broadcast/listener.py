"""The one place that waits: for the next packet, or for a deadline."""

from collections.abc import Callable

from troth.crypto import PeerId
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.broadcast.position import Position
from troth.protocol.broadcast.router import Router
from troth.protocol.broadcast.timeouts import Pacing
from troth.protocol.core.errors import LeftOutError, StalledError
from troth.protocol.wire.frames import Answer, SyncShown


class Listener:
    """Receives packets, hands them to the router, and measures how long this peer computed in between (SPEC Q8)."""

    def __init__(self, link: PacketLink, router: Router, position: Position, pacing: Pacing) -> None:
        self._link = link
        self._router = router
        self._position = position
        self._pacing = pacing

    def now(self) -> float:
        return self._link.now()

    async def hear_one(self, until: float) -> bool:
        """Route the next packet; return whether one came in time."""
        latency, position = self._pacing.latency, self._position
        latency.back_at_link(self._link.now(), position.view.audits)
        heard = await self._link.receive(until)
        latency.left_link(self._link.now())
        if heard is not None:
            self._router.route(*heard)
        if position.quorum and len(position.left) >= position.quorum:
            raise StalledError(f"{len(position.left)} members have left the step, and wait for the others")
        if position.ahead and len(position.ahead) >= position.voices:  # one of them is honest
            raise LeftOutError("the others are too many steps ahead")
        return heard is not None

    async def wait(self, until: float, enough: Callable[[], bool]) -> None:
        """Hear packets until there is enough, or it is too late."""
        while not enough() and self._link.now() < until:
            await self.hear_one(until)

    async def wait_for_blobs(self, missing: Callable[[], int], of: int) -> None:
        """Wait for blobs. The time until more than half are there is measured, whatever liars withhold (SPEC Q8)."""
        until, began = self._pacing.due(), self._link.now()
        await self.wait(until, lambda: 2 * missing() < max(1, of))
        self._pacing.latency.carried(self._link.now() - began)
        await self.wait(until, lambda: not missing())

    async def hear_outside(self, until: float) -> tuple[PeerId, Answer] | None:
        """Wait for the next answer to a peer that is in no step; other frames are routed as usual. Records count from those that
        were asked for them: to check their signatures takes a while [M4]."""
        while self._link.now() < until:
            heard = await self._link.receive(until)
            if heard is not None:
                sender, packet = heard
                if isinstance(packet.frame, SyncShown) and not self._position.expects(sender):
                    continue
                if isinstance(packet.frame, Answer):
                    return sender, packet.frame
                self._router.route(sender, packet)
        return None
