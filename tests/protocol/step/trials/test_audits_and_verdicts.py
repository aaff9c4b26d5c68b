"""Audits and trials in whole runs: liars are convicted, honest peers are not."""

import dataclasses
import math
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.protocol.samples import KEYS, announced
from tests.protocol.small_runs import SMALL, finished, last_audit_record, wrap_channel
from troth.crypto import Digest, PeerId, Slot, blob_digest
from troth.evidence.verify import verify_ban
from troth.protocol.core.channel import AttemptView, Disclose, Exchange, ForwardingChannel, Said
from troth.protocol.core.records import decode_record
from troth.protocol.core.roles import draw_roles
from troth.protocol.step.audits import AuditFinding, audit
from troth.protocol.step.trials import Charge, audit_ballots
from troth.protocol.wire.messages import (
    NO_BASIS,
    Accusation,
    Accuse,
    Announced,
    Ballot,
    ChargeKind,
    GuiltySide,
    Message,
    Report,
    ReportNumbers,
    Vote,
)
from troth.workshop.simulation import ProtocolSimulation


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("an audit asks nobody")


def test_a_wrong_accusation_is_of_a_message_that_was_never_sent(attacked: ProtocolSimulation) -> None:
    """[E1, T3] The target did lie, but not in the message that the accuser names: the accuser made it up."""
    honest, kept = attacked.peers[attacked.honest[0]], last_audit_record(attacked)
    target = kept.contributors[0]
    guilty = AuditFinding(Digest(bytes(32)), fits=False, report_error=math.inf, deviation=None)
    right = honest.tools.digest(kept.commits[target].envelope.payload)
    for message, verdict in ((right, GuiltySide.ACCUSED), (NO_BASIS, GuiltySide.ACCUSER)):
        charge = Charge(KEYS[0], target, ChargeKind.GRADIENT, kept.step, None, message)
        (ballot,) = audit_ballots(kept, charge, guilty, honest.tools)
        assert (ballot.verdict, ballot.message) == (verdict, message)


def test_an_owner_that_named_the_reporter_covered_nobody(attacked: ProtocolSimulation) -> None:
    """[T7] Where too few are left to convict, its accusation is dismissed, and an audit finds the wrong report later."""
    honest, kept = attacked.peers[attacked.honest[0]], last_audit_record(attacked)
    target = kept.contributors[0]
    part = next(part for part, owner in enumerate(kept.owners) if owner in kept.accuses.keys() - {target})
    wrong = AuditFinding(Digest(bytes(32)), fits=True, report_error=1.0, deviation=None, covered=(part,))
    message = honest.tools.digest(kept.reports[target].envelope.payload)
    charge = Charge(KEYS[0], target, ChargeKind.AUDITED_REPORT, kept.step, None, message)
    owner = kept.owners[part]

    def ballots(*accusations: Accusation) -> list[Ballot]:
        accuse = announced(owner, Accuse(accusations, bytes(32)))
        spoke = dataclasses.replace(kept, accuses={**kept.accuses, owner: accuse})
        covered = Charge(None, owner, ChargeKind.COVER, kept.step, part, honest.tools.digest(accuse.envelope.payload))
        return [
            ballot for ballot in audit_ballots(spoke, charge, wrong, honest.tools) if ballot == covered.ballot(True)
        ]

    assert ballots(Accusation(target, ChargeKind.REPORT, kept.step, part, message)) == []
    assert len(ballots()) == 1
    for other in (
        Accusation(target, ChargeKind.REPORT, kept.step, part + 1, message),
        Accusation(owner, ChargeKind.REPORT, kept.step, part, message),
        Accusation(target, ChargeKind.REPORT, kept.step, part, NO_BASIS),  # nobody hears that
    ):
        assert len(ballots(other)) == 1


def test_liars_are_banned_in_the_step_in_which_an_honest_validator_audits_them(attacked: ProtocolSimulation) -> None:
    """[D1, T3–T5] All liars are gone, nobody else is, and everyone agrees."""
    assert {ban.peer for ban in attacked.bans} == set(attacked.byzantine) == attacked.pool.attackers
    assert attacked.agreement
    members = attacked.states[attacked.honest[0]].roster.members
    assert sorted(members) == attacked.honest


@pytest.mark.long
def test_without_attack_nobody_is_accused() -> None:
    """[D1] 29 audits, and five of each of six at the end; no trial: an honest gradient recomputes to the same bits."""
    calm = finished(dataclasses.replace(SMALL, byzantine=0))
    assert (calm.audits, calm.trials, calm.bans) == (29 + 5 * 6, 0, [])


def test_a_lie_in_the_last_bit_is_found(attacked: ProtocolSimulation) -> None:
    """[D1] The audit compares roots: a gradient at a model that differs in its last bits is another one."""
    honest = attacked.peers[attacked.honest[0]]
    kept = last_audit_record(attacked)
    target = kept.contributors[0]
    assert run_now(audit(honest, kept, target)).accusation(bits_count=True) is None
    right_D = kept.training.parameters_D
    nudged_D = right_D.nextafter(right_D + 1)  # one number alone may leave the gradient as it is, by rounding
    elsewhere = dataclasses.replace(kept, training=dataclasses.replace(kept.training, parameters_D=nudged_D))
    finding = run_now(audit(honest, elsewhere, target))
    assert finding.accusation(bits_count=True) == ChargeKind.GRADIENT
    assert finding.guilty_of(ChargeKind.GRADIENT)
    assert not finding.guilty_of(ChargeKind.AUDITED_REPORT), "it is tried for what it was accused of"


def test_a_lie_in_the_report_is_found(attacked: ProtocolSimulation) -> None:
    """[D2] The right gradient with a wrong projection."""
    honest = attacked.peers[attacked.honest[0]]
    kept = last_audit_record(attacked)
    target, parts = kept.contributors[0], len(kept.bounds) - 1
    report = kept.reports[target].message
    assert isinstance(report, Report)
    numbers = ReportNumbers.unpack(report.numbers, parts, 16)
    assert isinstance(numbers, ReportNumbers)
    projections = numbers.projections_PK.copy()
    projections[0, 0] += 1e-6 * numbers.norms_P[0]
    lie = announced(target, Report(ReportNumbers(numbers.lengths_P, numbers.norms_P, projections).pack()))
    finding = run_now(audit(honest, dataclasses.replace(kept, reports={**kept.reports, target: lie}), target))
    assert (finding.accusation(bits_count=True), finding.covered) == (ChargeKind.AUDITED_REPORT, (0,))
    assert finding.guilty_of(ChargeKind.AUDITED_REPORT)
    assert not finding.guilty_of(ChargeKind.GRADIENT)


def test_colluders_who_vote_against_the_accuser_change_nothing(attacked: ProtocolSimulation) -> None:
    """[T4] They did vote so, in the trials of their own; more than half, four of seven, then of six, show otherwise."""
    assert attacked.trials == len(attacked.bans) == 2
    counts = [(proof.votes, proof.members) for proof in (verify_ban(e.text) for e in attacked.evidence)]
    assert counts == [(4, 7), (4, 6)]


@pytest.mark.long
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


class _FalseAccuser(ForwardingChannel):
    """Wraps a channel: whenever its peer is a validator, it accuses its target, whatever the audit showed."""

    def __init__(self, inner: Any, simulation: ProtocolSimulation, me: PeerId) -> None:
        super().__init__(inner)
        self._simulation, self._me = simulation, me

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Accuse):
            state = self._simulation.states[self._me]
            roles = draw_roles(self._simulation.run, state.roster, state.randomness, state.pending_audits)
            lies = tuple(Accusation(a.target, ChargeKind.GRADIENT, a.step) for a in roles.audits.get(self._me, ()))
            message = msgspec.structs.replace(message, accusations=lies)
        return await self._inner.announce(slot, message, view)


class _Disputing(ForwardingChannel):
    """Wraps a liar's channel: it accuses an honest contributor, and does not vote."""

    _reports: Mapping[PeerId, Announced]

    def __init__(self, inner: Any, simulation: ProtocolSimulation, me: PeerId) -> None:
        super().__init__(inner)
        self._simulation, self._me = simulation, me

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Vote):
            return await self._inner.announce(slot, Vote(()), view)
        if isinstance(message, Accuse):
            state = self._simulation.states[self._me]
            owners = draw_roles(self._simulation.run, state.roster, state.randomness, state.pending_audits).owners
            if self._me in owners:
                victim = next(peer for peer in owners if peer in self._simulation.honest)
                report = blob_digest(self._reports[victim].envelope.payload)
                false = Accusation(victim, ChargeKind.REPORT, slot.step, owners.index(self._me), report)
                message = msgspec.structs.replace(message, accusations=(false,))
        heard = await self._inner.announce(slot, message, view)
        if isinstance(message, Report):
            self._reports = heard
        return heard


class _Blind(ForwardingChannel):
    """Wraps an honest juror's channel: of liars it gets nothing that they lay open."""

    def __init__(self, inner: Any, liars: frozenset[PeerId]) -> None:
        super().__init__(inner)
        self._liars = liars

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        shown = await super().exchange(slot, blobs, view)
        if not isinstance(blobs, Disclose):
            return shown
        return {showing: {} if showing[1] in self._liars else parts for showing, parts in shown.items()}


def test_an_owner_that_lays_open_to_half_of_the_jury_does_not_stop_the_model() -> None:
    """[T6, N3] No quorum clears it, and none says that it withheld anything; but all honest jurors say one or the other."""
    scenario = dataclasses.replace(SMALL, attack_start=11, attack_stop=12, steps=12, evaluate_every=12)
    simulation = ProtocolSimulation(scenario)
    liars = frozenset(peer for peer in simulation.peers if peer not in simulation.honest)
    for liar in liars:
        wrap_channel(simulation, liar, partial(_Disputing, simulation=simulation, me=liar))
    for juror in simulation.honest[:2]:
        wrap_channel(simulation, juror, lambda inner: _Blind(inner, liars))
    seen = [decode_record(simulation.trace[-1]) for _ in zip(range(10), simulation.steps(), strict=False)]
    judged = [j for record in seen for j in record.judgements if j.kind == ChargeKind.AGGREGATE]
    assert {j.verdict for j in judged} == {GuiltySide.WITHHELD}
    assert {peer for record in seen for peer in record.struck} == liars == {PeerId(j.target) for j in judged}
    assert simulation.updates == 10
    assert simulation.agreement
    assert simulation.bans == []
