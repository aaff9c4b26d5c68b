"""Requests of an absent peer for records and for its seat (SPEC B2, B3), signed with the key that the others know."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.records import Returned
from troth.protocol.core.rejoin import signed_request
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.frames import RejoinRequest, SyncWanted
from troth.protocol.wire.messages import Phase

T = TypeVar("T")


@dataclass(frozen=True)
class Requests:
    """Sends the requests of one seat."""

    run: Run
    seat: Identity  # the key that the others know this peer by
    key: Identity  # of this peer now: the same, or a successor key

    def ask(self, channel: BroadcastChannel, peers: Iterable[PeerId], since: int) -> None:
        """Ask for the records since this step, and to observe from now on."""
        slot = Slot(self.run.id, since, Phase.REJOIN)
        delegation = self.seat.sign(signed_bytes(slot, self.seat.peer, Digest(self.key.peer)))
        channel.outlet.send_each(slot, peers, SyncWanted(since, self.seat.peer, delegation))

    def rejoin(self, channel: BroadcastChannel, state: State[T], ahead: int) -> bool:
        """Request to rejoin after each of the next `ahead` steps that allow it; return whether there is one (SPEC B3)."""
        roster, seat = state.roster, self.seat
        since, back = roster.absent_since(seat.peer), Returned(seat.peer, self.key.peer)
        steps = [k for k in range(state.step + 1, state.step + 1 + ahead) if roster.may_return(back, k)]
        if since is None or not steps:
            return False
        for step in steps:
            slot = Slot(self.run.id, step, Phase.REJOIN, incarnation=state.incarnation)
            signed = signed_request(slot, seat, self.key, since)
            request = RejoinRequest(signed.member, signed.signature, signed.accepted)
            channel.outlet.send_each(slot, roster.members, request)
        return True
