"""Following certified records from the last one that a member knew, and choosing between two histories (SPEC B2)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.protocol.recovery.certified_records import MemberBehind, made_again, member_after, past_steps, signed_again
from tests.protocol.returning_members import IDENTITIES
from troth.crypto import Digest
from troth.protocol.core.records import decode_record
from troth.protocol.core.run import Run
from troth.protocol.core.scales import Scales
from troth.protocol.core.state import State
from troth.protocol.recovery.catch_up import Voices
from troth.protocol.recovery.history import Followed, follow, state_after
from troth.protocol.recovery.ledger import ForkedError
from troth.protocol.wire.frames import (
    CertifiedRecord,
    RestartCertificate,
)
from troth.protocol.wire.primitives import Primitives


def _from_the_start(certified: Sequence[CertifiedRecord], run: Run | None = None) -> Followed | None:
    past, right, _ = past_steps()
    known = State.first(past if run is None else run, None)
    return follow(run or past, known, Digest(decode_record(right[0].record).state_before), certified, Primitives())


def test_records_lead_from_what_one_knew_to_the_last() -> None:
    """[B2] Each follows on the one before, signed by a quorum of the members before it."""
    run, certified, _ = past_steps()
    whole = _from_the_start(certified)
    assert whole is not None
    assert [record.step for record in whole.records] == list(range(5))
    assert whole.tip == certified[-1].record
    first = _from_the_start(certified[:3])
    assert first is not None
    model = Digest(first.records[-1].state_after)
    known = state_after(run, State.first(run, None), first, None, model, Primitives())
    later = follow(run, known, model, certified[3:], Primitives())
    assert later is not None
    assert later.tip == whole.tip
    assert _from_the_start(()) is None
    for elsewhere in (
        replace(known, earlier_randomness=Digest(bytes(32))),
        replace(known, randomness=Digest(bytes(32))),
        replace(known, scales=Scales(0.5)),
    ):
        assert follow(run, elsewhere, model, certified[3:], Primitives()) is None
    assert follow(run, known, Digest(bytes(32)), certified[3:], Primitives()) is None


def _forged(name: str) -> tuple[CertifiedRecord, ...]:
    _, certified, who = past_steps()
    two = list(who.values())[:2]
    first, second, third, *rest = certified
    forged: dict[str, tuple[CertifiedRecord, ...]] = {
        "no signatures": (CertifiedRecord(first.record, {}), *certified[1:]),
        "signatures that do not fit": (
            CertifiedRecord(first.record, dict.fromkeys(first.signatures, bytes(64))),
            *certified[1:],
        ),
        "signatures of another step": (first, CertifiedRecord(second.record, third.signatures), third, *rest),
        "signed by a minority": (first, signed_again(second, two, state_after=bytes(32)), third, *rest),
        "signed by strangers": (first, signed_again(second, IDENTITIES[:5], state_after=bytes(32)), third, *rest),
        "another roster": (first, signed_again(second, who.values(), members=tuple(sorted(who))[:4]), third, *rest),
        "another model before": (first, signed_again(second, who.values(), state_before=bytes(32)), third, *rest),
        "another model after": (first, signed_again(second, who.values(), state_after=bytes(32)), third, *rest),
        "other seeds": (first, second, signed_again(third, who.values(), seed_randomness=bytes(32)), *rest),
        "other coins": (signed_again(first, who.values(), randomness=bytes(32)), *certified[1:]),
        "another radius": (first, signed_again(second, who.values(), tau=0.7), third, *rest),
        "another count": (first, signed_again(second, who.values(), updates=7), third, *rest),
        "an earlier incarnation": (signed_again(first, who.values(), incarnation=1), second, third, *rest),
        "a gap": (first, third, *rest),
        "twice the same": (first, first, second, third, *rest),
        "from another step on": certified[1:],
        "no record": (first, CertifiedRecord(b"no record", dict(second.signatures)), third, *rest),
    }
    return forged[name]


@pytest.mark.parametrize(
    "name",
    [
        "no signatures",
        "signatures that do not fit",
        "signatures of another step",
        "signed by a minority",
        "signed by strangers",
        "another roster",
        "another model before",
        "another model after",
        "other seeds",
        "other coins",
        "another radius",
        "another count",
        "an earlier incarnation",
        "a gap",
        "twice the same",
        "from another step on",
        "no record",
    ],
)
def test_forged_records_lead_nowhere(name: str) -> None:
    """[B2] Not even as far as the last right one: a peer that shows them is not believed at all."""
    assert _from_the_start(_forged(name)) is None


def test_records_of_another_run_lead_nowhere() -> None:
    """[B2, M1] The same people with the same plan."""
    run, certified, _ = past_steps()
    assert _from_the_start(certified, replace(run, nonce=bytes(32))) is None


def test_of_two_records_of_one_step_the_later_incarnation_counts_if_its_beginning_is_proved() -> None:
    """[B2, B5] Both are signed by a quorum: a member that was not there when the others began anew takes theirs, and no other."""
    behind = member_after(3)
    again, begun = made_again(behind, behind.shown[2], 1, state_after=b"a" * 32)
    shown = behind.shows(again, begun=begun)
    assert shown is not None
    behind.ledger.adopt(shown, "last")
    assert behind.ledger.certified == (*behind.shown[:2], again)
    assert behind.ledger.state.incarnation == 1
    few = RestartCertificate(begun.step, begun.tip, 1, dict(list(begun.ready.items())[:2]))
    for proof in (
        None,
        few,
        RestartCertificate(begun.step, begun.tip, 2, begun.ready),
        RestartCertificate(begun.step, bytes(32), 1, begun.ready),
        RestartCertificate(begun.step + 1, begun.tip, 1, begun.ready),
    ):
        assert member_after(3).shows(again, begun=proof) is None, proof
    same, _ = made_again(behind, behind.shown[2], 0, state_after=b"a" * 32)
    assert member_after(3).shows(same, begun=begun) is None, "of the same incarnation"


def test_a_history_that_differs_before_the_last_record_is_for_people_to_look_into() -> None:
    """[B2] A quorum signed both. But nobody can stop a peer with what no quorum signed."""
    behind = member_after(3)
    other = signed_again(behind.shown[2], behind.who.values(), seed_randomness=b"a" * 32, incarnation=1)
    with pytest.raises(ForkedError, match="two histories"):
        behind.shows(other)
    for signers in (list(behind.who.values())[:2], IDENTITIES[:5]):
        assert member_after(3).shows(signed_again(behind.shown[2], signers, seed_randomness=b"a" * 32)) is None


def test_records_from_one_voice_are_enough_and_the_longest_counts() -> None:
    """[B2] They prove themselves; liars who are silent, or show less, change nothing."""
    behind = MemberBehind()
    shown = behind.shows(*behind.shown)
    assert shown is not None
    assert shown.followed.step == 5
    again = member_after(3).shows(*behind.shown[2:])
    assert again is not None, "from its own last record on"
    assert again.certified == behind.shown[3:]


def test_liars_who_answer_first_with_the_past_do_not_decide_where_to_observe() -> None:
    """[B7] Somebody honest must have spoken, or had the time to: then the longest counts."""
    behind, voices = MemberBehind(), Voices[Any]()
    past, now = behind.shows(*behind.shown[:2]), behind.shows(*behind.shown)
    assert past is not None
    assert now is not None
    assert now.followed.roster.liars == 0
    two = replace(now.followed.roster, byzantine=2)
    past, now = (replace(one, followed=replace(one.followed, roster=two)) for one in (past, now))
    liars, honest = two.members[:2], two.members[2]
    assert voices.newest(0.0, 10.0) is None
    for liar in liars:
        voices.hear(liar, past, 1.0)
        assert voices.newest(1.0, 10.0) is None
    voices.hear(IDENTITIES[0].peer, past, 1.0)
    assert voices.newest(2.0, 10.0) is None, "a stranger"
    assert voices.newest(11.0, 10.0) is past
    voices.hear(honest, now, 2.0)
    assert voices.newest(2.0, 10.0) is now
    assert voices.tellers(now)[0] == honest
