"""Audits, accusations, votes: liars are convicted, honest peers are not, nobody else is heard."""

import dataclasses
import math
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.protocol.small_runs import SMALL, finished, last_kept, rewired
from tests.protocol.step.test_audit_all import RECORD
from troth.crypto import Digest, Identity, PeerId, blob_digest, derive
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import decode_record
from troth.protocol.core.roles import Audit, PendingAudits, Roles, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.step.audits import Finding, audit
from troth.protocol.step.trials import (
    AUDIT_KINDS,
    Charge,
    Docket,
    Trials,
    audit_ballots,
    heard_audits,
    heard_owners,
    judge,
)
from troth.protocol.wire.messages import (
    NO_BASIS,
    Accusation,
    Accuse,
    Announced,
    Ballot,
    Envelope,
    Kind,
    Message,
    Report,
    ReportNumbers,
    Verdict,
    Vote,
)
from troth.protocol.wire.primitives import Primitives
from troth.simulation import ProtocolSimulation

KEYS = tuple(sorted(Identity.from_secret(derive(0, "key", k)).peer for k in range(7)))
STEP = 9
CHARGE = Charge(KEYS[0], KEYS[1], Kind.GRADIENT, STEP - 1)
OWNERS = KEYS[3:]
REPORTS = {peer: Announced(peer, Report(b""), Envelope(peer, bytes(64))) for peer in OWNERS}
ROLES = Roles(
    {KEYS[0]: (Audit(KEYS[1], STEP - 1),), KEYS[2]: (Audit(KEYS[3], STEP - 1), Audit(KEYS[6], STEP - 2))},
    (KEYS[0], KEYS[2]),
    KEYS[3:],
    (0, 1),
)


def said(sender: PeerId, message: Message) -> Announced:
    return Announced(sender, message, Envelope(b"", bytes(64)))


def votes(*verdicts: Verdict | None) -> dict[PeerId, Announced]:
    return {
        voter: said(voter, Vote((CHARGE.ballot(verdict == Verdict.ACCUSED),) if verdict else ()))
        for voter, verdict in zip(KEYS, verdicts, strict=False)
    }


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("an audit asks nobody")


def docket(*charges: Charge, **more: Any) -> Docket:
    return Docket(STEP, charges or (CHARGE,), peers=len(KEYS), **more)


def test_only_the_drawn_validator_is_heard() -> None:
    """[T1, T2] Others' accusations, and repetitions, do not reach the docket."""
    wrong_target = Accuse((Accusation(KEYS[4], Kind.GRADIENT, STEP - 1),), bytes(32))
    right_twice = Accuse((Accusation(KEYS[1], Kind.GRADIENT, STEP - 1),) * 2, bytes(32))
    accuses = {
        KEYS[0]: said(KEYS[0], right_twice),
        KEYS[2]: said(KEYS[2], wrong_target),
        KEYS[5]: said(KEYS[5], right_twice),
    }
    assert heard_audits(accuses, ROLES) == (CHARGE,)


def test_an_auditor_is_heard_once_about_a_target() -> None:
    """[T1] Of many accusations, each of another kind or message, the first counts: else two thousand of them would make every
    honest vote too long to be one."""
    many = [Accusation(KEYS[1], kind, STEP - 1, None, bytes([k]) * 32) for k in range(200) for kind in AUDIT_KINDS]
    heard = heard_audits({KEYS[0]: said(KEYS[0], Accuse(tuple(many), bytes(32)))}, ROLES)
    assert heard == (Charge(KEYS[0], KEYS[1], many[0].kind, STEP - 1, None, Digest(bytes(32))),)


@pytest.mark.parametrize("kind", [Kind.GRADIENT, Kind.AUDITED_REPORT, Kind.DEVIATION])
def test_an_auditor_is_heard_about_the_step_it_was_drawn_for(kind: Kind) -> None:
    """[T2, R7] An audit that is owed is of another step: neither target may be accused of the other's."""
    auditor, last, owed = KEYS[2], KEYS[3], KEYS[6]

    def charges(target: PeerId, step: int) -> tuple[Charge, ...]:
        accuse = Accuse((Accusation(target, kind, step),), bytes(32))
        return heard_audits({auditor: said(auditor, accuse)}, ROLES)

    assert charges(last, STEP - 1) == (Charge(auditor, last, kind, STEP - 1),)
    assert charges(owed, STEP - 2) == (Charge(auditor, owed, kind, STEP - 2),)
    for target, step in ((last, STEP - 2), (owed, STEP - 1), (last, STEP), (owed, STEP), (last, STEP - 3)):
        assert charges(target, step) == ()


@pytest.mark.parametrize("kind", [Kind.REPORT, Kind.AGGREGATE, Kind.COVER])
def test_an_auditor_is_not_heard_about_anything_but_its_audit(kind: Kind) -> None:
    """[T2]"""
    accuse = Accuse((Accusation(KEYS[1], kind, STEP - 1),), bytes(32))
    assert heard_audits({KEYS[0]: said(KEYS[0], accuse)}, ROLES) == ()


def test_only_a_parts_owner_is_heard_about_its_reports() -> None:
    """[T1, T2] Not about others' parts, not about itself, not about those who did not contribute, not about no part."""
    owner, other = OWNERS[0], OWNERS[1]

    def charges(accuser: PeerId, target: PeerId, part: int | None, step: int = STEP) -> tuple[Charge, ...]:
        accuse = Accuse((Accusation(target, Kind.REPORT, step, part, message),) * 2, bytes(32))
        return heard_owners({accuser: said(accuser, accuse)}, STEP, OWNERS, REPORTS, Primitives())

    message = blob_digest(other)
    assert charges(owner, other, 0) == (Charge(owner, other, Kind.REPORT, STEP, 0, message),)
    assert charges(owner, other, 0, STEP - 1) == charges(owner, other, 0, STEP + 1) == ()
    for accuser, target, part in (
        (owner, other, 1),
        (owner, owner, 0),
        (owner, KEYS[0], 0),
        (owner, other, None),
        (owner, other, 99),
    ):
        assert charges(accuser, target, part) == ()
    aggregate = Accuse((Accusation(other, Kind.AGGREGATE, STEP, 0, message),), bytes(32))
    assert heard_owners({owner: said(owner, aggregate)}, STEP, OWNERS, REPORTS, Primitives()) == ()
    message = blob_digest(owner)  # not what the accused said
    assert charges(owner, other, 0) == ()


@pytest.mark.parametrize(
    ("cast", "verdict"),
    [
        ((Verdict.ACCUSED,) * 4 + (Verdict.ACCUSER,) * 3, Verdict.ACCUSED),
        ((Verdict.ACCUSER,) * 4 + (Verdict.ACCUSED,) * 3, Verdict.ACCUSER),
        ((Verdict.ACCUSED,) * 3 + (Verdict.ACCUSER,) * 3 + (None,), None),
        ((Verdict.ACCUSED,) * 3, None),
        ((), None),
    ],
)
def test_more_than_half_of_the_members_decide(cast: tuple[Verdict | None, ...], verdict: Verdict | None) -> None:
    """[T4] Accused, accuser, or nobody; three votes of seven decide nothing, even if nobody else votes."""
    (judgement,) = judge(2, votes(*cast), Roster(KEYS), docket())
    assert (judgement.verdict, judgement.attempt) == (verdict, 2)
    banned = {None: None, Verdict.ACCUSED: KEYS[1], Verdict.ACCUSER: KEYS[0]}[verdict]
    assert judgement.banned == banned


def test_votes_of_outsiders_and_double_ballots_do_not_count() -> None:
    """[T4] Seven keys vote, but only five are members, and one of those votes twice."""
    cast = votes(*(Verdict.ACCUSED,) * 7)
    cast[KEYS[4]] = said(KEYS[4], Vote((CHARGE.ballot(True), CHARGE.ballot(False))))
    two = docket(CHARGE, Charge(KEYS[2], KEYS[3], Kind.GRADIENT, STEP - 1))  # so that two ballots are not too many
    assert judge(0, cast, Roster(KEYS[2:]), two)[0].verdict == Verdict.ACCUSED  # 4 of 5
    cast[KEYS[3]] = cast[KEYS[2]] = said(KEYS[2], Vote(()))
    assert judge(0, cast, Roster(KEYS[2:]), two)[0].verdict is None  # 2 of 5


def test_a_majority_that_liars_may_be_decides_nothing() -> None:
    """[T4, G1] Of seven founders three may lie, three are gone: of four left three votes are more than half, and not enough."""
    roster = Roster(KEYS[:4], byzantine=3, admitted=7)
    assert judge(0, votes(*(Verdict.ACCUSED,) * 3), roster, docket())[0].verdict is None
    assert judge(0, votes(*(Verdict.ACCUSED,) * 4), roster, docket())[0].verdict == Verdict.ACCUSED


def test_ballots_on_charges_that_nobody_brought_are_dropped() -> None:
    """[T4] Even if all cast them: of another accuser, target, kind, step, part or message; or of parts that are not disputed."""
    brought = Charge(OWNERS[0], OWNERS[1], Kind.REPORT, STEP, 0, Digest(b"m" * 32))
    open_parts = {"owners": {0: OWNERS[0]}, "contributors": frozenset(OWNERS)}
    invented = [
        dataclasses.replace(brought, **{field: value})  # type: ignore[arg-type]
        for field, value in {
            "accuser": OWNERS[2],
            "target": OWNERS[3],
            "kind": Kind.GRADIENT,
            "step": STEP - 1,
            "part": 1,
            "message": Digest(b"n" * 32),
        }.items()
    ]
    invented += [
        Charge(None, OWNERS[1], Kind.AGGREGATE, STEP, 0),  # not its owner
        Charge(None, OWNERS[0], Kind.AGGREGATE, STEP, 1),  # not disputed
        Charge(None, OWNERS[0], Kind.AGGREGATE, STEP - 1, 0),
        Charge(None, KEYS[0], Kind.REPORT, STEP, 0),  # did not contribute
        Charge(None, OWNERS[1], Kind.GRADIENT, STEP - 1),  # needs an accuser
        Charge(None, OWNERS[1], Kind.COVER, STEP - 1, 0),  # no report of that step was audited
        Charge(None, OWNERS[1], Kind.EQUIVOCATION, STEP),
    ]
    right = [brought, Charge(None, OWNERS[0], Kind.AGGREGATE, STEP, 0), Charge(None, OWNERS[2], Kind.REPORT, STEP, 0)]
    this = docket(brought, **open_parts)
    assert all(map(this.admits, right))
    for charge in invented:
        assert not this.admits(charge)
        everyone = {peer: said(peer, Vote((charge.ballot(True),))) for peer in KEYS}
        assert [j for j in judge(0, everyone, Roster(KEYS), this) if j.verdict is not None] == []
    covering = docket(Charge(KEYS[0], KEYS[1], Kind.AUDITED_REPORT, STEP - 1))
    assert covering.admits(Charge(None, OWNERS[1], Kind.COVER, STEP - 1, 0))
    assert not covering.admits(Charge(None, OWNERS[1], Kind.COVER, STEP - 2, 0))


def test_a_padded_vote_does_not_count() -> None:
    """[T4] It holds more ballots than there can be charges: each of them would cost everyone time, and evidence its size."""
    longest = docket(CHARGE, owners={0: OWNERS[0]}, contributors=frozenset(OWNERS)).most_ballots
    assert longest == 1 + (1 + 4)  # the accusation, the part's owner, and what its contributors reported
    this = docket()
    assert this.most_ballots == 1
    padded = tuple(Charge(None, KEYS[k % 7], Kind.COVER, k, 0).ballot(True) for k in range(this.most_ballots))
    cast = {peer: said(peer, Vote((CHARGE.ballot(True), *padded))) for peer in KEYS[:4]}
    assert judge(0, cast, Roster(KEYS), this)[0].verdict is None
    plain = {peer: said(peer, Vote((CHARGE.ballot(True),))) for peer in KEYS[:4]}
    assert judge(0, plain, Roster(KEYS), this)[0].verdict == Verdict.ACCUSED


def test_counting_long_votes_on_many_charges_is_quick() -> None:
    """[T4] Seven owners name each other's reports in thousands of parts, and all vote on all: looked up, not searched."""
    charges = tuple(Charge(a, b, Kind.REPORT, STEP, part) for a in KEYS for b in KEYS for part in range(100))
    many = docket(*charges)
    cast = {peer: said(peer, Vote(tuple(charge.ballot(True) for charge in charges))) for peer in KEYS}
    began = time.process_time()
    assert len(judge(0, cast, Roster(KEYS), many)) == len(charges) == 4900
    assert time.process_time() - began < 10  # by searching it takes minutes


def test_a_wrong_accusation_is_of_a_message_that_was_never_sent(attacked: ProtocolSimulation) -> None:
    """[E1, T3] The target did lie, but not in the message that the accuser names: the accuser made it up."""
    honest, kept = attacked.peers[attacked.honest[0]], last_kept(attacked)
    target = kept.contributors[0]
    guilty = Finding(fits=False, report_error=math.inf, deviation=None)
    right = honest.tools.digest(kept.commits[target].envelope.payload)
    for message, verdict in ((right, Verdict.ACCUSED), (NO_BASIS, Verdict.ACCUSER)):
        charge = Charge(KEYS[0], target, Kind.GRADIENT, kept.step, None, message)
        (ballot,) = audit_ballots(kept, charge, guilty, honest.tools)
        assert (ballot.verdict, ballot.message) == (verdict, message)


def test_an_owner_that_named_the_reporter_covered_nobody(attacked: ProtocolSimulation) -> None:
    """[T7] Where too few are left to convict, its accusation is dismissed, and an audit finds the wrong report later."""
    honest, kept = attacked.peers[attacked.honest[0]], last_kept(attacked)
    target = kept.contributors[0]
    part = next(part for part, owner in enumerate(kept.owners) if owner in kept.accuses.keys() - {target})
    wrong = Finding(fits=True, report_error=1.0, deviation=None, covered=(part,))
    message = honest.tools.digest(kept.reports[target].envelope.payload)
    charge = Charge(KEYS[0], target, Kind.AUDITED_REPORT, kept.step, None, message)
    owner = kept.owners[part]

    def ballots(*accusations: Accusation) -> list[Ballot]:
        accuse = said(owner, Accuse(accusations, bytes(32)))
        spoke = dataclasses.replace(kept, accuses={**kept.accuses, owner: accuse})
        covered = Charge(None, owner, Kind.COVER, kept.step, part, honest.tools.digest(accuse.envelope.payload))
        return [
            ballot for ballot in audit_ballots(spoke, charge, wrong, honest.tools) if ballot == covered.ballot(True)
        ]

    assert ballots(Accusation(target, Kind.REPORT, kept.step, part, message)) == []
    assert len(ballots()) == 1
    for other in (
        Accusation(target, Kind.REPORT, kept.step, part + 1, message),
        Accusation(owner, Kind.REPORT, kept.step, part, message),
        Accusation(target, Kind.REPORT, kept.step, part, NO_BASIS),  # nobody hears that
    ):
        assert len(ballots(other)) == 1


def test_liars_are_banned_in_the_step_in_which_an_honest_validator_audits_them(attacked: ProtocolSimulation) -> None:
    """[D1, T3–T5] All liars are gone, nobody else is, and everyone agrees."""
    assert {ban.peer for ban in attacked.bans} == set(attacked.byzantine) == attacked.pool.attackers
    assert attacked.agreement
    members = attacked.states[attacked.honest[0]].roster.members
    assert sorted(members) == attacked.honest


def test_without_attack_nobody_is_accused() -> None:
    """[D1] 29 audits, and five of each of six at the end; no trial: an honest gradient recomputes to the same bits."""
    calm = finished(dataclasses.replace(SMALL, byzantine=0))
    assert (calm.audits, calm.trials, calm.bans) == (29 + 5 * 6, 0, [])


def test_a_lie_in_the_last_bit_is_found(attacked: ProtocolSimulation) -> None:
    """[D1] The audit compares roots: one changed coordinate, however little, is enough."""
    honest = attacked.peers[attacked.honest[0]]
    kept = last_kept(attacked)
    target = kept.contributors[0]
    assert run_now(audit(honest, kept, target)).accusation(bits_count=True) is None
    nudged_D = kept.training.parameters_D.clone()
    nudged_D[0] = nudged_D[0].nextafter(nudged_D[0] + 1)
    elsewhere = dataclasses.replace(kept, training=dataclasses.replace(kept.training, parameters_D=nudged_D))
    finding = run_now(audit(honest, elsewhere, target))
    assert finding.accusation(bits_count=True) == Kind.GRADIENT
    assert finding.guilty_of(Kind.GRADIENT)
    assert not finding.guilty_of(Kind.AUDITED_REPORT), "it is tried for what it was accused of"


def test_a_lie_in_the_report_is_found(attacked: ProtocolSimulation) -> None:
    """[D2] The right gradient with a wrong projection."""
    honest = attacked.peers[attacked.honest[0]]
    kept = last_kept(attacked)
    target, parts = kept.contributors[0], len(kept.bounds) - 1
    report = kept.reports[target].message
    assert isinstance(report, Report)
    numbers = ReportNumbers.unpack(report.numbers, parts, 16)
    assert isinstance(numbers, ReportNumbers)
    projections = numbers.projections_PK.copy()
    projections[0, 0] += 1e-6 * numbers.norms_P[0]
    lie = said(target, Report(ReportNumbers(numbers.lengths_P, numbers.norms_P, projections).pack()))
    finding = run_now(audit(honest, dataclasses.replace(kept, reports={**kept.reports, target: lie}), target))
    assert (finding.accusation(bits_count=True), finding.covered) == (Kind.AUDITED_REPORT, (0,))
    assert finding.guilty_of(Kind.AUDITED_REPORT)
    assert not finding.guilty_of(Kind.GRADIENT)


def test_colluders_who_vote_against_the_accuser_change_nothing(attacked: ProtocolSimulation) -> None:
    """[T4] They did vote so, in the trials of their own; more than half, four of seven, then of six, show otherwise."""
    assert attacked.trials == len(attacked.bans) == 2
    counts = [(proof.votes, proof.members) for proof in (verify_ban(e.text) for e in attacked.evidence)]
    assert counts == [(4, 7), (4, 6)]


def test_a_false_accuser_is_banned_instead() -> None:
    """[T3, T4] A colluding validator accuses an honest target: every honest juror recomputes, and the accuser goes."""
    scenario = dataclasses.replace(SMALL, attack_start=29)  # no wrong gradients until the last step
    simulation = ProtocolSimulation(scenario)
    for peer, member in list(simulation.peers.items()):
        if peer not in simulation.honest:
            simulation.peers[peer] = dataclasses.replace(
                member, channel=_FalseAccuser(member.channel, simulation, peer)
            )
    for _ in simulation.steps():
        pass
    assert simulation.trials >= 2
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)
    assert all("falsely" in ban.reason for ban in simulation.bans)
    assert simulation.agreement


class _FalseAccuser:
    """Wraps a channel: whenever its peer is a validator, it accuses its target, whatever the audit showed."""

    def __init__(self, inner: Any, simulation: ProtocolSimulation, me: PeerId) -> None:
        self._inner, self._simulation, self._me = inner, simulation, me

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def announce(self, slot: Any, message: Message) -> Any:
        if isinstance(message, Accuse):
            state = self._simulation.states[self._me]
            roles = draw_roles(self._simulation.run, state.roster, state.randomness, state.pending_audits)
            lies = tuple(Accusation(a.target, Kind.GRADIENT, a.step) for a in roles.audits.get(self._me, ()))
            message = msgspec.structs.replace(message, accusations=lies)
        return await self._inner.announce(slot, message)


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
    """[G2] Too few clear it, so it must not move the model, and everyone audits; of an earlier attempt it does not matter."""
    against = Charge(None, OWNERS[0], Kind.AGGREGATE, STEP, 0)
    verdicts = (Verdict.ACCUSER,) * cleared + (Verdict.WITHHELD,) * withheld
    cast = {voter: said(voter, Vote((against.cast(verdict),))) for voter, verdict in zip(KEYS, verdicts, strict=False)}
    accused = Charge(OWNERS[0], OWNERS[1], Kind.REPORT, STEP, 0)
    this = docket(accused, owners={0: OWNERS[0]}, contributors=OWNERS, doubted=frozenset({0} if doubted else ()))
    trials = Trials(Roster(KEYS))
    trials.judge(1, {}, cast, this)
    assert trials.undecided(1) is undecided
    assert not trials.undecided(2)
    record = msgspec.structs.replace(RECORD, judgements=trials.judgements, updated=not undecided)
    assert PendingAudits.after(record).everyone is undecided


class _Disputing:
    """Wraps a liar's channel: it accuses an honest contributor, and does not vote."""

    _reports: Mapping[PeerId, Announced]

    def __init__(self, inner: Any, simulation: ProtocolSimulation, me: PeerId) -> None:
        self._inner, self._simulation, self._me = inner, simulation, me

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def announce(self, slot: Any, message: Message) -> Any:
        if isinstance(message, Vote):
            return await self._inner.announce(slot, Vote(()))
        if isinstance(message, Accuse):
            state = self._simulation.states[self._me]
            owners = draw_roles(self._simulation.run, state.roster, state.randomness, state.pending_audits).owners
            if self._me in owners:
                victim = next(peer for peer in owners if peer in self._simulation.honest)
                report = blob_digest(self._reports[victim].envelope.payload)
                false = Accusation(victim, Kind.REPORT, slot.step, owners.index(self._me), report)
                message = msgspec.structs.replace(message, accusations=(false,))
        announced = await self._inner.announce(slot, message)
        if isinstance(message, Report):
            self._reports = announced
        return announced


class _Blind:
    """Wraps an honest juror's channel: of liars it gets nothing that they lay open."""

    def __init__(self, inner: Any, liars: frozenset[PeerId]) -> None:
        self._inner, self._liars = inner, liars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def disclose(self, slot: Any, mine: Any, wanted: Any, count: int) -> Any:
        shown = await self._inner.disclose(slot, mine, wanted, count)
        return {showing: {} if showing[1] in self._liars else proven_parts for showing, proven_parts in shown.items()}


def test_an_owner_that_lays_open_to_half_of_the_jury_does_not_stop_the_model() -> None:
    """[T6, N3] No quorum clears it, and none says that it withheld anything; but all honest jurors say one or the other."""
    scenario = dataclasses.replace(SMALL, attack_start=11, attack_stop=12, steps=12, evaluate_every=12)
    simulation = ProtocolSimulation(scenario)
    liars = frozenset(peer for peer in simulation.peers if peer not in simulation.honest)
    for liar in liars:
        rewired(simulation, liar, partial(_Disputing, simulation=simulation, me=liar))
    for juror in simulation.honest[:2]:
        rewired(simulation, juror, lambda inner: _Blind(inner, liars))
    seen = [decode_record(simulation.trace[-1]) for _ in zip(range(10), simulation.steps(), strict=False)]
    judged = [j for record in seen for j in record.judgements if j.kind == Kind.AGGREGATE]
    assert {j.verdict for j in judged} == {Verdict.WITHHELD}
    assert {peer for record in seen for peer in record.struck} == liars == {PeerId(j.target) for j in judged}
    assert simulation.updates == 10
    assert simulation.agreement
    assert simulation.bans == []


@pytest.mark.parametrize(("false", "withheld", "out"), [(2, 2, True), (2, 1, False), (0, 4, True), (3, 0, False)])
def test_a_false_accusation_that_was_laid_open_to_some_counts_as_withheld(false: int, withheld: int, out: bool) -> None:
    """[T6] Together a quorum of four says that the owner lies; fewer could be liars, of whom there may be three."""
    accused = Charge(OWNERS[0], OWNERS[1], Kind.REPORT, STEP, 0)
    against = Charge(None, OWNERS[0], Kind.AGGREGATE, STEP, 0)
    ballots = [(accused.ballot(False), against.ballot(False))] * false + [(against.cast(Verdict.WITHHELD),)] * withheld
    cast = {voter: said(voter, Vote(mine)) for voter, mine in zip(KEYS, ballots, strict=False)}
    this = docket(accused, owners={0: OWNERS[0]}, contributors=OWNERS)
    found = {j.kind: j.verdict for j in judge(0, cast, Roster(KEYS, byzantine=3, admitted=7), this)}
    assert found[Kind.REPORT] is None
    assert found.get(Kind.AGGREGATE) == (Verdict.WITHHELD if out else None)
