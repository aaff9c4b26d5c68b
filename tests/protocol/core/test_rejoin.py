"""Rejoin requests that members list in Commit: each proves itself (SPEC B3)."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tests.protocol.returning_members import (
    PEERS,
    SUCCESSORS,
    rejoin_request,
    rejoin_slot,
    roster_after,
    roster_with_one_absent,
)
from troth.crypto import PeerId
from troth.protocol.core.records import Returned
from troth.protocol.core.state import is_request, returning, right_requests
from troth.protocol.wire.messages import Announced, Commit, Envelope, SignedRejoin
from troth.protocol.wire.primitives import Primitives


def _commits(listed: Mapping[int, Sequence[SignedRejoin]]) -> dict[PeerId, Announced]:
    """Commits of six members with the requests that each lists."""

    def said(number: int) -> Commit:
        return Commit(None, bytes(32), bytes(32), None, tuple(listed.get(number, ())))

    return {PEERS[k]: Announced(PEERS[k], said(k), Envelope(b"", bytes(64))) for k in range(6)}


def test_one_voice_is_enough() -> None:
    """[B3] A request proves itself: liars, however many, keep nobody out by not listing it."""
    request = rejoin_request(PEERS[-1], PEERS[-1])
    back = (Returned(PEERS[-1], PEERS[-1]),)
    assert [returning(_commits({k: [request] for k in range(n)}), roster_with_one_absent(), 8) for n in (0, 1, 6)] == [
        (),
        back,
        back,
    ]


def test_a_request_is_for_one_step_of_one_absence_in_one_incarnation() -> None:
    """[B3] A liar keeps requests and lists them when their owner is gone again: it would use up its returns, and let in
    somebody who is not there."""
    absent, slot, roster, tools = PEERS[-1], rejoin_slot(8), roster_with_one_absent(), Primitives()
    for successor in (absent, SUCCESSORS[0]):
        right = rejoin_request(absent, successor, at=8, since=5)
        assert is_request(slot, right, roster, tools)
        wrong = [
            rejoin_request(absent, successor, at=7, since=5),
            rejoin_request(absent, successor, at=9, since=5),
            rejoin_request(absent, successor, at=8, since=4),
            rejoin_request(absent, successor, at=8, since=5, incarnation=1),
            SignedRejoin(absent, SUCCESSORS[1], right.signature, right.accepted),
            SignedRejoin(PEERS[0], successor, right.signature, right.accepted),
        ]
        assert [is_request(slot, one, roster, tools) for one in wrong] == [False] * len(wrong)
        back = roster_after(roster, 8, returned=(Returned(absent, successor),))
        for at in (9, 10):
            assert not is_request(rejoin_slot(at), rejoin_request(absent, successor, at=at, since=5), back, tools), (
                "it is a member"
            )
        if successor == absent:
            again = roster_after(back, 9, absent=(absent,))
            assert not is_request(rejoin_slot(10), rejoin_request(absent, successor, at=10, since=5), again, tools), (
                "kept from last time"
            )
            assert is_request(rejoin_slot(10), rejoin_request(absent, successor, at=10, since=9), again, tools)


def test_a_key_that_is_named_as_successor_has_signed_too() -> None:
    """[B3, B8] For the same step of the same absence; whoever comes back under its own key needs no consent."""
    absent, slot, roster, tools = PEERS[-1], rejoin_slot(8), roster_with_one_absent(), Primitives()
    right, own = (rejoin_request(absent, key, at=8, since=5) for key in (SUCCESSORS[0], absent))
    assert is_request(slot, right, roster, tools)
    assert is_request(slot, own, roster, tools)
    earlier = (rejoin_request(absent, SUCCESSORS[0], at=at, since=since) for at, since in ((7, 5), (8, 4)))
    wrong = [
        replace(right, accepted=None),
        replace(right, accepted=right.signature),
        replace(right, key=SUCCESSORS[1]),
        replace(own, accepted=right.accepted),
        replace(own, accepted=own.signature),
        *(replace(right, accepted=other.accepted) for other in earlier),
    ]
    assert not any(is_request(slot, one, roster, tools) for one in wrong)


def test_requests_are_listed_once_for_each_who_is_absent() -> None:
    """[B3]"""
    absent, tools = PEERS[-1], Primitives()
    one, other = (rejoin_request(absent, key, at=8, since=5) for key in (absent, SUCCESSORS[0]))
    junk = SignedRejoin(absent, absent, bytes(64))
    assert right_requests(rejoin_slot(8), [one, junk], roster_with_one_absent(), tools) == [one]
    assert len(right_requests(rejoin_slot(8), [one, other], roster_with_one_absent(), tools)) == 1


def test_one_request_for_a_seat_counts() -> None:
    """[B3] Two keys for one seat: everyone takes the same one."""
    one, other = (rejoin_request(PEERS[-1], key) for key in sorted(SUCCESSORS[:2]))
    for listed in ({0: [other], 1: [one]}, {0: [one], 1: [other]}):
        assert returning(_commits(listed), roster_with_one_absent(), 8) == (Returned(PEERS[-1], one.key),)
