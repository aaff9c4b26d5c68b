"""Requests to be a member again (SPEC B3): signed by the absent member, listed in Commits, granted by the record."""

from collections.abc import Iterable, Mapping

from troth.crypto import Context, PeerId, signed_bytes, tagged_hash
from troth.protocol.core.records import Returned
from troth.protocol.core.roster import Roster
from troth.protocol.wire.messages import MOST_KNOCKS, Announced, Commit, Knocking, Phase, said_as
from troth.protocol.wire.primitives import Primitives


def request_bytes(place: Context, member: PeerId, key: PeerId, since: int) -> bytes:
    """What a member signs that wants to come back after this step, under this key. It names the step in which it fell out: a
    request that a liar kept from an earlier absence is worth nothing (SPEC B3)."""
    what = tagged_hash("troth/return/1", since.to_bytes(8, "big"), key)
    return signed_bytes(place._replace(phase=Phase.KNOCK, attempt=0), member, what)


def is_request(place: Context, knock: Knocking, roster: Roster, tools: Primitives) -> bool:
    """Whether the member is absent, and signed this for the step at this place."""
    member, since = PeerId(knock.member), roster.absent_since(PeerId(knock.member))
    if since is None or not 0 <= place.incarnation < 1 << 32:
        return False
    return tools.verify(member, request_bytes(place, member, PeerId(knock.key), since), knock.signature)


def right_requests(place: Context, knocks: Iterable[Knocking], roster: Roster, tools: Primitives) -> list[Knocking]:
    """Those that may be listed in Commit: one for each who is absent."""
    once = {knock.member: knock for knock in knocks if is_request(place, knock, roster, tools)}
    return [once[member] for member in sorted(once)][:MOST_KNOCKS]


def returning(commits: Mapping[PeerId, Announced], roster: Roster, step: int) -> tuple[Returned, ...]:
    """Whoever may come back, and is listed by anyone: a request proves itself, and silence keeps nobody out (SPEC B3)."""
    listed = {Returned(knock.member, knock.key) for said in commits.values() for knock in said_as(said, Commit).knocks}
    may = sorted((back for back in listed if roster.may_return(back, step)), key=lambda back: (back.member, back.key))
    once = {back.member: back for back in reversed(may)}
    return tuple(once[member] for member in sorted(once))[:MOST_KNOCKS]
