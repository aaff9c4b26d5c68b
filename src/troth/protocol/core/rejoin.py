"""Rejoin requests (SPEC B3): signed by the absent peer, listed in Commits, granted by the record."""

from collections.abc import Iterable, Mapping

from troth.crypto import Identity, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.core.records import Returned
from troth.protocol.core.roster import Roster
from troth.protocol.wire.messages import MOST_REJOINS, Announced, Commit, Phase, SignedRejoin, said_as
from troth.protocol.wire.primitives import Primitives


def request_bytes(slot: Slot, member: PeerId, key: PeerId, since: int) -> bytes:
    """Bytes that an absent peer signs to come back after this step, under this key.

    They name the step in which it fell out: a request that a liar kept from an earlier absence is worth nothing (SPEC B3)."""
    what = tagged_hash("troth/return/1", since.to_bytes(8, "big"), key)
    return signed_bytes(slot._replace(phase=Phase.REJOIN, attempt=0), member, what)


def acceptance_bytes(slot: Slot, member: PeerId, key: PeerId, since: int) -> bytes:
    """Bytes that a successor key signs to take over the seat after this step: a ban of the seat bans it too (SPEC B8)."""
    what = tagged_hash("troth/return/accepted/1", since.to_bytes(8, "big"), member)
    return signed_bytes(slot._replace(phase=Phase.REJOIN, attempt=0), key, what)


def signed_request(slot: Slot, seat: Identity, successor: Identity, since: int) -> SignedRejoin:
    """A request of the seat to come back after the step of this slot, under its own key or a successor key."""
    member, key = seat.peer, successor.peer
    signature = seat.sign(request_bytes(slot, member, key, since))
    accepted = None if key == member else successor.sign(acceptance_bytes(slot, member, key, since))
    return SignedRejoin(member, key, signature, accepted)


def is_request(slot: Slot, rejoin: SignedRejoin, roster: Roster, tools: Primitives) -> bool:
    """Tell whether the peer is absent, and signed this request for the step of this slot, as did the key that it names."""
    member, key, since = PeerId(rejoin.member), PeerId(rejoin.key), roster.absent_since(PeerId(rejoin.member))
    if since is None or not 0 <= slot.incarnation < 1 << 32 or (rejoin.accepted is None) != (key == member):
        return False
    return tools.verify(member, request_bytes(slot, member, key, since), rejoin.signature) and (
        rejoin.accepted is None or tools.verify(key, acceptance_bytes(slot, member, key, since), rejoin.accepted)
    )


def right_requests(
    slot: Slot, rejoins: Iterable[SignedRejoin], roster: Roster, tools: Primitives
) -> list[SignedRejoin]:
    """Requests that may be listed in Commit: one for each absent peer."""
    once = {rejoin.member: rejoin for rejoin in rejoins if is_request(slot, rejoin, roster, tools)}
    return [once[member] for member in sorted(once)][:MOST_REJOINS]


def returning(commits: Mapping[PeerId, Announced], roster: Roster, step: int) -> tuple[Returned, ...]:
    """Peers that may come back and are listed by anyone: a request proves itself, and silence keeps nobody out (SPEC B3). Of
    those that came in by the door, only as many as may be admitted, the longest away first (SPEC J7)."""
    listed = {
        Returned(rejoin.member, rejoin.key) for said in commits.values() for rejoin in said_as(said, Commit).rejoins
    }
    may = sorted((back for back in listed if roster.may_return(back, step)), key=lambda back: (back.member, back.key))
    once = {PeerId(back.member): back for back in reversed(may)}
    by_the_door = sorted(once.keys() & roster.came_in, key=lambda member: (roster.absent_since(member), member))
    late = by_the_door[roster.door.most_admitted(len(roster.members)) :]
    return tuple(once[member] for member in sorted(once.keys() - set(late)))[:MOST_REJOINS]
