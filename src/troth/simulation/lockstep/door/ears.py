"""A member's ear at the door, in a world where everything that is shown reaches everyone: the protocol's own doorkeeper."""

from collections.abc import Iterable

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.outside.doorkeeper import Doorkeeper
from troth.protocol.core.channel import NothingNoticed
from troth.protocol.core.roster import Roster
from troth.protocol.wire.frames import ProbeShown, TicketShown
from troth.protocol.wire.messages import Probe, SignedRejoin, Ticket
from troth.protocol.wire.primitives import Primitives


class Ear(NothingNoticed):
    """`Noticed` of one member: tickets and commitments of strangers, and requests of newcomers that want to come back."""

    def __init__(self, tools: Primitives) -> None:
        self._doorkeeper = Doorkeeper(tools)
        self._step = 0
        self._rejoins: dict[PeerId, SignedRejoin] = {}  # for this step, one of each absent peer

    def stand(self, run: Digest, roster: Roster, step: int) -> None:
        """Stand at the door in this step."""
        self._step = step
        self._rejoins.clear()
        self._doorkeeper.stand(run, roster)
        self._doorkeeper.forget(step)

    def hear(self, sender: PeerId, slot: Slot, shown: TicketShown | ProbeShown) -> None:
        self._doorkeeper.hear(sender, slot, shown, self._step)

    def hear_request(self, request: SignedRejoin) -> None:
        self._rejoins.setdefault(PeerId(request.member), request)

    def tickets(self) -> Iterable[Ticket]:
        return self._doorkeeper.tickets

    def probes(self, step: int) -> Iterable[Probe]:
        return self._doorkeeper.probes(step)

    def rejoins(self, step: int) -> Iterable[SignedRejoin]:
        return list(self._rejoins.values()) if step == self._step else ()
