"""Members between steps: they stand at the last certified record, and borrow those of others (SPEC B5, U2)."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.protocol.recovery.certified_records import MemberBehind, made_again, member_after, signed_again
from tests.protocol.returning_members import IDENTITIES, PEERS, RUN, SilentLink
from troth.crypto import Digest, PeerId, blob_digest
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.records import Owed, decode_record
from troth.protocol.core.state import NO_MODEL, LastRecord, Peer, State
from troth.protocol.history import Followed, follow, state_after
from troth.protocol.recovery.member import Member
from troth.protocol.wire.frames import Packet, SyncWanted
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation.exchange import PowerCutError


def test_records_borrowed_in_several_pieces_are_given_back_as_a_whole() -> None:
    """[B5] Nobody hands out the model that belongs to it: everything is as before the first piece."""
    behind = MemberBehind()
    behind.borrow(*behind.shown[:3])
    behind.time = 20.0
    behind.borrow(*behind.shown[3:])
    assert behind.ledger.certified == behind.shown
    assert behind.ledger.lacks is not None
    behind.time = 49.0
    behind.give_up_borrowing()
    assert behind.ledger.state.step == 5, "counted from the last piece"
    behind.time = 51.0
    behind.give_up_borrowing()
    assert behind.ledger.state is behind.first
    given_back: Any = (behind.ledger.lacks, behind.ledger.certified, behind.ledger.earlier)
    assert given_back == (None, (), None)
    for pieces in (behind.shown[:3], behind.shown):
        again = behind.shows(*pieces)
        assert again is not None
        assert behind.ledger.is_hopeless(again)
    assert behind.written == []


def test_a_member_that_lacks_the_last_model_is_not_done() -> None:
    """[B5] It would take the run's first model for the last."""
    behind = MemberBehind()
    closing = signed_again(behind.shown[-1], behind.who.values(), closing=True)
    behind.borrow(*behind.shown[:-1], closing)
    assert not behind.ledger.over
    behind.complete()
    assert behind.ledger.over


def test_out_of_a_step_a_peer_stands_at_its_last_certified_record() -> None:
    """[U2, B5] The next Commit certifies a record, also if nothing else comes of that step; till then nobody is shown it."""
    behind = member_after(2)
    ledger, third = behind.ledger, behind.shown[2]
    before = replace(ledger.state, model=NO_MODEL)
    followed = follow(behind.run, before, behind.ledger.model_of(before), [third], Primitives())
    assert isinstance(followed, Followed)
    after = state_after(behind.run, before, followed.records, "last", NO_MODEL, Primitives())
    for certified in (False, True):
        ledger.past, ledger.state, ledger.lacks = (before,), after, None
        if certified:
            behind.certify(third)
            assert behind.written == [third]
        behind.ledger.step_back()
        assert ledger.state is (after if certified else before)
        assert ledger.certified == (behind.shown[:3] if certified else behind.shown[:2])
        assert (ledger.lacks is None) == certified, "its model before that is not here"


def test_a_member_gets_back_a_thrown_away_record_that_others_can_prove_with_its_audit_records() -> None:
    """[U2, B6, K1] Else a blackout while a record is signed would leave nobody who can audit its step."""
    behind = member_after(2)
    ledger, third = behind.ledger, behind.shown[2]
    followed = follow(behind.run, ledger.state, behind.ledger.model_of(ledger.state), [third], Primitives())
    assert isinstance(followed, Followed)
    kept: Any = {2: "what audits need"}
    model = Digest(followed.records[-1].state_after)
    after = replace(
        state_after(behind.run, ledger.state, followed.records, "third", model, Primitives()), audit_records=kept
    )
    ledger.past, ledger.state = (*ledger.past, ledger.state), after
    behind.ledger.step_back()
    assert ledger.state is not after
    behind.borrow(third)
    assert ledger.state is after
    assert ledger.lacks is None
    assert behind.written == [third]


def test_a_member_that_borrows_records_keeps_what_owed_audits_need() -> None:
    """[R7, K1, B6] It was a member in that step, so the audit may be dealt to it. Without the record it would pass the audit
    over, and its silence would count as an acquittal."""
    behind = member_after(3)
    ledger, who = behind.ledger, behind.who.values()
    kept: Any = {step: f"what audits of step {step} need" for step in range(3)}
    ledger.state = replace(ledger.state, audit_records=kept)
    owing = signed_again(behind.shown[3], who, owed=(Owed(min(behind.who), 0, 3), Owed(min(behind.who), 99, 1)))
    behind.borrow(owing)
    assert ledger.state.step == 4
    assert ledger.state.audit_records == {0: kept[0], 2: kept[2]}, "and of the last two steps the one that it made"
    assert ledger.past[-1].audit_records == kept


def test_a_member_that_steps_back_forgets_the_record_beyond() -> None:
    """[U2] The journal may still hold an older record of a step that was made again and not certified."""
    behind = member_after(3)
    ledger, again = behind.ledger, made_again(behind, behind.shown[2], 1)[0]
    last = LastRecord(decode_record(again.record), blob_digest(again.record), 3, {})
    ledger.state = replace(ledger.state, last=last)
    behind.ledger.step_back()
    assert ledger.certified == behind.shown[:2]
    assert ledger.state.step == 2


def test_a_successor_that_fails_at_first_is_still_a_successor() -> None:
    """[B1, B2] The others know the old key, however often it tries under the new one."""
    asked: list[tuple[PeerId, Packet]] = []

    class Deaf(SilentLink):
        def send(self, to: PeerId, packet: Packet) -> None:
            asked.append((to, packet))

    old, successor, work = IDENTITIES[0], IDENTITIES[7], cast(Any, SimpleNamespace(digest=lambda _: bytes(32)))
    peer: Any = Peer(old, RUN, work, cast(Any, None), cast(Any, None), Primitives())
    member: Member[Any] = Member(
        peer, State.first(RUN, None), lambda who: BroadcastChannel(who, Deaf(), Timeouts(), Primitives())
    )
    for _ in range(2):
        with pytest.raises(PowerCutError):
            cast(Any, anext(member.come_back(successor))).send(None)
    wanted = [packet.frame for _, packet in asked if isinstance(packet.frame, SyncWanted)]
    assert {frame.member for frame in wanted} == {bytes(old.peer)}
    assert len(wanted) >= 2 * (len(PEERS) - 1)


def test_records_of_others_are_written_down_once_the_model_is_here() -> None:
    """[B5] Else a member that stops again could not show them to those who are behind it."""
    behind = MemberBehind()
    behind.borrow(*behind.shown[:3])
    behind.borrow(*behind.shown[3:])
    behind.complete()
    assert behind.written == list(behind.shown)
    assert behind.ledger.state.step == 5
    assert behind.ledger.state.training == "last"
    behind.time = 1000.0
    behind.give_up_borrowing()
    assert behind.ledger.state.step == 5


class _Counting(Primitives):
    """Counts the signatures that are verified."""

    verified = 0

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        self.verified += 1
        return super().verify(peer, message, signature)

    def verify_all(self, questions: Sequence[tuple[PeerId, bytes, bytes]]) -> list[bool]:
        return [self.verify(*question) for question in questions]


def test_records_that_members_show_again_are_not_verified_again() -> None:
    """[B2] They show all of them in every step, and one more: a peer far behind would verify nothing else, and never catch up."""
    tools = _Counting()
    behind = MemberBehind(tools)
    assert behind.shows(*behind.shown[:4]) is not None
    four = tools.verified
    shown = behind.shows(*behind.shown[:4])
    assert (shown is not None and shown.followed.step, tools.verified) == (4, four)
    shown = behind.shows(*behind.shown[:5])
    assert (shown is not None and shown.followed.step, tools.verified) == (5, four + four // 4)
    shown = behind.shows(*behind.shown[:2])
    assert (shown is not None and shown.followed.step, tools.verified) == (2, four + four // 4)


def test_a_record_that_is_shown_with_other_signatures_is_verified() -> None:
    """[B2] What was verified before vouches for exactly that, and for nothing that a liar puts in its place."""
    behind = MemberBehind()
    first, second, third = behind.shown[:3]
    assert behind.shows(first, second, third) is not None
    unsigned = msgspec.structs.replace(second, signatures=dict.fromkeys(second.signatures, bytes(64)))
    assert behind.shows(first, unsigned, third) is None
    assert behind.shows(first, third) is None
    fewer = signed_again(second, list(behind.who.values())[:1])
    assert behind.shows(first, fewer, third) is None
    everyone = signed_again(second, behind.who.values())
    assert behind.shows(first, everyone, third) is not None
