"""Charges, ballots and verdicts: the accusers that are heard, the votes that count, the judgement that follows."""

import dataclasses
import time
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from tests.protocol.samples import CLOSE, announced
from troth.crypto import Digest, Identity, PeerId, blob_digest, derive
from troth.protocol.core.roles import AuditDuty, PendingAudits, Roles
from troth.protocol.core.roster import Roster
from troth.protocol.step.attempt import AttemptAborted
from troth.protocol.step.trials import AUDIT_KINDS, Charge, Docket, Trials, heard_audits, heard_owners, judge
from troth.protocol.wire.messages import (
    NO_BASIS,
    Accusation,
    Accuse,
    Announced,
    ChargeKind,
    Envelope,
    GuiltySide,
    Report,
    Vote,
)
from troth.protocol.wire.primitives import Primitives

KEYS = tuple(sorted(Identity.from_secret(derive(0, "key", k)).peer for k in range(7)))
STEP = 9
CHARGE = Charge(KEYS[0], KEYS[1], ChargeKind.GRADIENT, STEP - 1)
OWNERS = KEYS[3:]
REPORTS = {peer: Announced(peer, Report(b""), Envelope(peer, bytes(64))) for peer in OWNERS}
ROLES = Roles(
    {KEYS[0]: (AuditDuty(KEYS[1], STEP - 1),), KEYS[2]: (AuditDuty(KEYS[3], STEP - 1), AuditDuty(KEYS[6], STEP - 2))},
    (KEYS[0], KEYS[2]),
    KEYS[3:],
    (0, 1),
)


def votes(*verdicts: GuiltySide | None) -> dict[PeerId, Announced]:
    return {
        voter: announced(voter, Vote((CHARGE.ballot(verdict == GuiltySide.ACCUSED),) if verdict else ()))
        for voter, verdict in zip(KEYS, verdicts, strict=False)
    }


def docket(*charges: Charge, **more: Any) -> Docket:
    return Docket(STEP, charges or (CHARGE,), peers=len(KEYS), **more)


def test_only_the_drawn_validator_is_heard() -> None:
    """[T1, T2] Others' accusations, and repetitions, do not reach the docket."""
    wrong_target = Accuse((Accusation(KEYS[4], ChargeKind.GRADIENT, STEP - 1),), bytes(32))
    right_twice = Accuse((Accusation(KEYS[1], ChargeKind.GRADIENT, STEP - 1),) * 2, bytes(32))
    accuses = {
        KEYS[0]: announced(KEYS[0], right_twice),
        KEYS[2]: announced(KEYS[2], wrong_target),
        KEYS[5]: announced(KEYS[5], right_twice),
    }
    assert heard_audits(accuses, ROLES) == (CHARGE,)


def test_an_auditor_is_heard_once_about_a_target() -> None:
    """[T1] Of many accusations, each of another kind or message, the first counts: else two thousand of them would make every
    honest vote too long to be one."""
    many = [Accusation(KEYS[1], kind, STEP - 1, None, bytes([k]) * 32) for k in range(200) for kind in AUDIT_KINDS]
    heard = heard_audits({KEYS[0]: announced(KEYS[0], Accuse(tuple(many), bytes(32)))}, ROLES)
    assert heard == (Charge(KEYS[0], KEYS[1], many[0].kind, STEP - 1, None, Digest(bytes(32))),)


@pytest.mark.parametrize("kind", [ChargeKind.GRADIENT, ChargeKind.AUDITED_REPORT, ChargeKind.DEVIATION])
def test_an_auditor_is_heard_about_the_step_it_was_drawn_for(kind: ChargeKind) -> None:
    """[T2, R7] An audit that is owed is of another step: neither target may be accused of the other's."""
    auditor, last, owed = KEYS[2], KEYS[3], KEYS[6]

    def charges(target: PeerId, step: int) -> tuple[Charge, ...]:
        accuse = Accuse((Accusation(target, kind, step),), bytes(32))
        return heard_audits({auditor: announced(auditor, accuse)}, ROLES)

    assert charges(last, STEP - 1) == (Charge(auditor, last, kind, STEP - 1),)
    assert charges(owed, STEP - 2) == (Charge(auditor, owed, kind, STEP - 2),)
    for target, step in ((last, STEP - 2), (owed, STEP - 1), (last, STEP), (owed, STEP), (last, STEP - 3)):
        assert charges(target, step) == ()


@pytest.mark.parametrize("kind", [ChargeKind.REPORT, ChargeKind.AGGREGATE, ChargeKind.COVER])
def test_an_auditor_is_not_heard_about_anything_but_its_audit(kind: ChargeKind) -> None:
    """[T2]"""
    accuse = Accuse((Accusation(KEYS[1], kind, STEP - 1),), bytes(32))
    assert heard_audits({KEYS[0]: announced(KEYS[0], accuse)}, ROLES) == ()


def test_only_a_parts_owner_is_heard_about_its_reports() -> None:
    """[T1, T2] Not about others' parts, not about itself, not about those who did not contribute, not about no part."""
    owner, other = OWNERS[0], OWNERS[1]

    def charges(accuser: PeerId, target: PeerId, part: int | None, step: int = STEP) -> tuple[Charge, ...]:
        accuse = Accuse((Accusation(target, ChargeKind.REPORT, step, part, message),) * 2, bytes(32))
        return heard_owners({accuser: announced(accuser, accuse)}, STEP, OWNERS, REPORTS, Primitives())

    message = blob_digest(other)
    assert charges(owner, other, 0) == (Charge(owner, other, ChargeKind.REPORT, STEP, 0, message),)
    assert charges(owner, other, 0, STEP - 1) == charges(owner, other, 0, STEP + 1) == ()
    for accuser, target, part in (
        (owner, other, 1),
        (owner, owner, 0),
        (owner, KEYS[0], 0),
        (owner, other, None),
        (owner, other, 99),
    ):
        assert charges(accuser, target, part) == ()
    aggregate = Accuse((Accusation(other, ChargeKind.AGGREGATE, STEP, 0, message),), bytes(32))
    assert heard_owners({owner: announced(owner, aggregate)}, STEP, OWNERS, REPORTS, Primitives()) == ()
    message = blob_digest(owner)  # not what the accused said
    assert charges(owner, other, 0) == ()


@pytest.mark.parametrize(
    ("cast", "verdict"),
    [
        ((GuiltySide.ACCUSED,) * 4 + (GuiltySide.ACCUSER,) * 3, GuiltySide.ACCUSED),
        ((GuiltySide.ACCUSER,) * 4 + (GuiltySide.ACCUSED,) * 3, GuiltySide.ACCUSER),
        ((GuiltySide.ACCUSED,) * 3 + (GuiltySide.ACCUSER,) * 3 + (None,), None),
        ((GuiltySide.ACCUSED,) * 3, None),
        ((), None),
    ],
)
def test_more_than_half_of_the_members_decide(cast: tuple[GuiltySide | None, ...], verdict: GuiltySide | None) -> None:
    """[T4] Accused, accuser, or nobody; three votes of seven decide nothing, even if nobody else votes."""
    (judgement,) = judge(2, votes(*cast), Roster(KEYS), docket())
    assert (judgement.verdict, judgement.attempt) == (verdict, 2)
    banned = {None: None, GuiltySide.ACCUSED: KEYS[1], GuiltySide.ACCUSER: KEYS[0]}[verdict]
    assert judgement.banned == banned


def test_votes_of_outsiders_and_double_ballots_do_not_count() -> None:
    """[T4] Seven keys vote, but only five are members, and one of those votes twice."""
    cast = votes(*(GuiltySide.ACCUSED,) * 7)
    cast[KEYS[4]] = announced(KEYS[4], Vote((CHARGE.ballot(True), CHARGE.ballot(False))))
    two = docket(
        CHARGE, Charge(KEYS[2], KEYS[3], ChargeKind.GRADIENT, STEP - 1)
    )  # so that two ballots are not too many
    assert judge(0, cast, Roster(KEYS[2:]), two)[0].verdict == GuiltySide.ACCUSED  # 4 of 5
    cast[KEYS[3]] = cast[KEYS[2]] = announced(KEYS[2], Vote(()))
    assert judge(0, cast, Roster(KEYS[2:]), two)[0].verdict is None  # 2 of 5


def test_a_majority_that_liars_may_be_decides_nothing() -> None:
    """[T4, G1] Of seven founders three may lie, three are gone: of four left three votes are more than half, and not enough."""
    roster = Roster(KEYS[:4], byzantine=3, admitted=7)
    assert judge(0, votes(*(GuiltySide.ACCUSED,) * 3), roster, docket())[0].verdict is None
    assert judge(0, votes(*(GuiltySide.ACCUSED,) * 4), roster, docket())[0].verdict == GuiltySide.ACCUSED


def test_a_quorum_has_to_agree_on_the_state_too() -> None:
    """[T4, U5] Ballots that name another state, or none, count apart: nobody can add to a verdict and hide what it rests on."""
    right, wrong = Digest(b"s" * 32), Digest(b"t" * 32)

    def cast(*states: Digest) -> dict[PeerId, Announced]:
        ballots = (CHARGE.ballot(True, state) for state in states)
        return {voter: announced(voter, Vote((one,))) for voter, one in zip(KEYS, ballots, strict=False)}

    (judged,) = judge(0, cast(right, right, wrong, right, NO_BASIS, right, wrong), Roster(KEYS), docket())
    assert (judged.verdict, judged.state) == (GuiltySide.ACCUSED, right)
    (judged,) = judge(0, cast(right, right, wrong, right, NO_BASIS, NO_BASIS, wrong), Roster(KEYS), docket())
    assert (judged.verdict, judged.state) == (None, NO_BASIS)


def test_two_ballots_at_different_states_count_as_none() -> None:
    """[T4, U5]"""
    both = Vote((CHARGE.ballot(True, Digest(b"s" * 32)), CHARGE.ballot(True)))
    two = docket(
        CHARGE, Charge(KEYS[2], KEYS[3], ChargeKind.GRADIENT, STEP - 1)
    )  # so that two ballots are not too many
    everyone = {peer: announced(peer, both) for peer in KEYS}
    assert judge(0, everyone, Roster(KEYS), two)[0].verdict is None


def test_ballots_on_charges_that_nobody_brought_are_dropped() -> None:
    """[T4] Even if all cast them: of another accuser, target, kind, step, part or message; or of parts that are not disputed."""
    brought = Charge(OWNERS[0], OWNERS[1], ChargeKind.REPORT, STEP, 0, Digest(b"m" * 32))
    open_parts = {"owners": {0: OWNERS[0]}, "contributors": frozenset(OWNERS)}
    invented = [
        dataclasses.replace(brought, **{field: value})  # type: ignore[arg-type]
        for field, value in {
            "accuser": OWNERS[2],
            "target": OWNERS[3],
            "kind": ChargeKind.GRADIENT,
            "step": STEP - 1,
            "part": 1,
            "message": Digest(b"n" * 32),
        }.items()
    ]
    invented += [
        Charge(None, OWNERS[1], ChargeKind.AGGREGATE, STEP, 0),  # not its owner
        Charge(None, OWNERS[0], ChargeKind.AGGREGATE, STEP, 1),  # not disputed
        Charge(None, OWNERS[0], ChargeKind.AGGREGATE, STEP - 1, 0),
        Charge(None, KEYS[0], ChargeKind.REPORT, STEP, 0),  # did not contribute
        Charge(None, OWNERS[1], ChargeKind.GRADIENT, STEP - 1),  # needs an accuser
        Charge(None, OWNERS[1], ChargeKind.COVER, STEP - 1, 0),  # no report of that step was audited
        Charge(None, OWNERS[1], ChargeKind.EQUIVOCATION, STEP),
    ]
    right = [
        brought,
        Charge(None, OWNERS[0], ChargeKind.AGGREGATE, STEP, 0),
        Charge(None, OWNERS[2], ChargeKind.REPORT, STEP, 0),
    ]
    this = docket(brought, **open_parts)
    assert all(map(this.admits, right))
    for charge in invented:
        assert not this.admits(charge)
        everyone = {peer: announced(peer, Vote((charge.ballot(True),))) for peer in KEYS}
        assert [j for j in judge(0, everyone, Roster(KEYS), this) if j.verdict is not None] == []
    covering = docket(Charge(KEYS[0], KEYS[1], ChargeKind.AUDITED_REPORT, STEP - 1))
    assert covering.admits(Charge(None, OWNERS[1], ChargeKind.COVER, STEP - 1, 0))
    assert not covering.admits(Charge(None, OWNERS[1], ChargeKind.COVER, STEP - 2, 0))


def test_a_padded_vote_does_not_count() -> None:
    """[T4] It holds more ballots than there can be charges: each of them would cost everyone time, and evidence its size."""
    longest = docket(CHARGE, owners={0: OWNERS[0]}, contributors=frozenset(OWNERS)).most_ballots
    assert longest == 1 + (1 + 4)  # the accusation, the part's owner, and what its contributors reported
    this = docket()
    assert this.most_ballots == 1
    padded = tuple(Charge(None, KEYS[k % 7], ChargeKind.COVER, k, 0).ballot(True) for k in range(this.most_ballots))
    cast = {peer: announced(peer, Vote((CHARGE.ballot(True), *padded))) for peer in KEYS[:4]}
    assert judge(0, cast, Roster(KEYS), this)[0].verdict is None
    plain = {peer: announced(peer, Vote((CHARGE.ballot(True),))) for peer in KEYS[:4]}
    assert judge(0, plain, Roster(KEYS), this)[0].verdict == GuiltySide.ACCUSED


@pytest.mark.long
def test_counting_long_votes_on_many_charges_is_quick() -> None:
    """[T4] Seven owners name each other's reports in thousands of parts, and all vote on all: looked up, not searched."""
    charges = tuple(Charge(a, b, ChargeKind.REPORT, STEP, part) for a in KEYS for b in KEYS for part in range(100))
    many = docket(*charges)
    cast = {peer: announced(peer, Vote(tuple(charge.ballot(True) for charge in charges))) for peer in KEYS}
    began = time.process_time()
    assert len(judge(0, cast, Roster(KEYS), many)) == len(charges) == 4900
    assert time.process_time() - began < 10  # by searching it takes minutes


@pytest.mark.parametrize(
    ("cleared", "withheld", "doubted", "undecided"),
    [
        (4, 0, True, False),
        (3, 3, True, True),  # shown to half of the jury
        (1, 0, True, True),  # the others do not vote
        (0, 0, True, True),
        (3, 3, False, False),  # nobody but its owner has a word to say about the part
    ],
)
def test_an_aggregate_whose_numbers_look_wrong_and_that_no_quorum_judged_is_undecided(
    cleared: int, withheld: int, doubted: bool, undecided: bool
) -> None:
    """[G2, R6] Too few clear it, so it must not move the model; of an earlier attempt it does not matter. Everyone audits, and
    also where a quorum cleared it, since somebody's row made it look wrong."""
    against = Charge(None, OWNERS[0], ChargeKind.AGGREGATE, STEP, 0)
    verdicts = (GuiltySide.ACCUSER,) * cleared + (GuiltySide.WITHHELD,) * withheld
    cast = {
        voter: announced(voter, Vote((against.cast(verdict),))) for voter, verdict in zip(KEYS, verdicts, strict=False)
    }
    accused = Charge(OWNERS[0], OWNERS[1], ChargeKind.REPORT, STEP, 0)
    this = docket(accused, owners={0: OWNERS[0]}, contributors=OWNERS, doubted=frozenset({0} if doubted else ()))
    trials = Trials(Roster(KEYS))
    trials.judge(1, {}, cast, this)
    assert trials.undecided(1) is undecided
    assert not trials.undecided(2)
    record = msgspec.structs.replace(CLOSE, judgements=trials.judgements, updated=not undecided)
    assert PendingAudits.after(record).everyone is (undecided or cleared == 4)


@pytest.mark.parametrize(
    ("right", "wrong", "withheld", "misreported", "struck"),
    [
        (5, 0, 0, 0, "accusers"),
        (3, 0, 0, 0, "accusers"),  # honest jurors, of whom some are gone; liars do not vote
        (3, 1, 1, 0, "accusers"),  # liars do
        (0, 2, 1, 0, "owner"),
        (3, 0, 3, 0, "all"),  # shown to half of the jury, for accusers that lie as well
        (2, 0, 2, 0, "all"),
        (0, 0, 0, 0, "all"),
        (3, 0, 0, 3, "nobody"),  # the accusers were misled
        (3, 0, 0, 2, "accusers"),
    ],
)
def test_more_than_all_liars_decide_who_is_struck_over_a_leaf(
    right: int, wrong: int, withheld: int, misreported: int, struck: str
) -> None:
    """[V4, N3] Among so many jurors one is honest; a quorum is not always left."""
    owner, accusers, reporter = OWNERS[0], frozenset(KEYS[3:5]), OWNERS[1]
    this = docket(
        owners={0: owner},
        doubted=frozenset({0}),
        checks={0: accusers},
        contributors=frozenset(OWNERS),
        reports={reporter: blob_digest(reporter)},
    )
    verdicts = [GuiltySide.ACCUSER] * right + [GuiltySide.ACCUSED] * wrong + [GuiltySide.WITHHELD] * withheld
    lied = Charge(None, reporter, ChargeKind.REPORT, STEP, 0, this.reports[reporter]).ballot(True)
    cast = {
        voter: announced(voter, Vote((this.against_owner(0).cast(verdict), *([lied] if k < misreported else []))))
        for k, (voter, verdict) in enumerate(zip(KEYS, verdicts, strict=False))
    }
    trials = Trials(Roster(KEYS, byzantine=2))
    trials.judge(1, {}, cast, this)
    expected = {"accusers": accusers, "owner": {owner}, "all": accusers | {owner}, "nobody": set()}
    assert trials.struck == expected[struck]


@pytest.mark.parametrize(
    ("cleared", "withheld", "silent", "out"),
    [(2, 2, True, True), (2, 2, False, False), (2, 1, True, False), (4, 3, True, False)],
)
def test_a_silent_owner_that_shows_its_part_to_some_is_out(
    cleared: int, withheld: int, silent: bool, out: bool
) -> None:
    """[T6, N3] It covers nobody (T7), so those who saw the part find it right; a split jury would stop the model for a step.
    Against an owner that spoke, liars could make the same of a few honest voices."""
    against = Charge(None, OWNERS[0], ChargeKind.AGGREGATE, STEP, 0)
    verdicts = (GuiltySide.ACCUSER,) * cleared + (GuiltySide.WITHHELD,) * withheld
    cast = {
        voter: announced(voter, Vote((against.cast(verdict),))) for voter, verdict in zip(KEYS, verdicts, strict=False)
    }
    quiet = frozenset(OWNERS[:1] if silent else ())
    this = Docket(STEP, (), {0: OWNERS[0]}, frozenset({0}), frozenset(OWNERS), peers=len(KEYS), silent=quiet)
    trials = Trials(Roster(KEYS, byzantine=3, admitted=7))
    with pytest.raises(AttemptAborted) if out else nullcontext() as why:
        trials.judge(0, {}, cast, this)
    assert (why is not None and why.value.peers == {OWNERS[0]}) is out
    assert (OWNERS[0] in trials.struck) is out


@pytest.mark.parametrize(("false", "withheld", "out"), [(2, 2, True), (2, 1, False), (0, 4, True), (3, 0, False)])
def test_a_false_accusation_that_was_laid_open_to_some_counts_as_withheld(false: int, withheld: int, out: bool) -> None:
    """[T6] Together a quorum of four says that the owner lies; fewer could be liars, of whom there may be three."""
    accused = Charge(OWNERS[0], OWNERS[1], ChargeKind.REPORT, STEP, 0)
    against = Charge(None, OWNERS[0], ChargeKind.AGGREGATE, STEP, 0)
    ballots = [(accused.ballot(False), against.ballot(False))] * false + [
        (against.cast(GuiltySide.WITHHELD),)
    ] * withheld
    cast = {voter: announced(voter, Vote(mine)) for voter, mine in zip(KEYS, ballots, strict=False)}
    this = docket(accused, owners={0: OWNERS[0]}, contributors=OWNERS)
    found = {j.kind: j.verdict for j in judge(0, cast, Roster(KEYS, byzantine=3, admitted=7), this)}
    assert found[ChargeKind.REPORT] is None
    assert found.get(ChargeKind.AGGREGATE) == (GuiltySide.WITHHELD if out else None)
