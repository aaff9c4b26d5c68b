"""Audits that come to nothing, with their auditor or in a dismissed trial, are owed and dealt again."""

import dataclasses
from functools import cache, partial

import pytest

from tests.evidence.forger import Forger
from tests.protocol.channel_wrappers import AlteringChannel, silent_in
from tests.protocol.samples import KEYS, STEP, announced, dealt_audits
from tests.protocol.small_runs import (
    BEFORE_ACCUSE,
    BEFORE_REPORT,
    LIE_ONCE,
    finished,
    kept_promises,
    records,
    run_on,
    wrap_channel,
)
from troth.crypto import PeerId
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import MOST_OWED, Judgement, Owed
from troth.protocol.core.roles import AuditDuty, PendingAudits, Roles, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.step.trials import AUDIT_KINDS, Trials
from troth.protocol.wire.messages import Accuse, Announced, ChargeKind, GuiltySide, Vote
from troth.workshop.simulation import ProtocolSimulation
from troth.workshop.simulation.exchange import DropOut, DroppingChannel, PowerCutError


def accuse_of(peer: PeerId) -> Announced:
    return announced(peer, Accuse((), bytes(32)))


FIRST = (Owed(KEYS[2], STEP, 1),)
OTHERS = (Owed(KEYS[3], STEP, 1),)


@pytest.mark.parametrize(
    ("heard", "times", "owed", "unaudited"),
    [
        (KEYS[:2], 3, (), ()),
        (KEYS[1:2], 3, FIRST, ()),
        (KEYS[:1], 1, (*OTHERS, Owed(KEYS[4], STEP - 1, 2)), ()),
        (KEYS[:1], 2, (*OTHERS, Owed(KEYS[4], STEP - 1, 3)), ()),
        (KEYS[:1], 3, OTHERS, (KEYS[4],)),
        ((), 3, (*FIRST, *OTHERS), (KEYS[4],)),
    ],
)
def test_an_audit_is_done_if_its_auditor_was_heard(
    heard: tuple[PeerId, ...], times: int, owed: tuple[Owed, ...], unaudited: tuple[PeerId, ...]
) -> None:
    """[R7] Come to nothing up to three times: owed. Once more: said so, and dropped."""
    owed = tuple(sorted(owed))
    audits = {KEYS[0]: (AuditDuty(KEYS[2], STEP),), KEYS[1]: (AuditDuty(KEYS[3], STEP), AuditDuty(KEYS[4], STEP - 1))}
    roles = Roles(audits, KEYS[:2], KEYS[2:], (0, 1))
    due = PendingAudits(STEP, KEYS[2:], owed=(Owed(KEYS[4], STEP - 1, times),))
    trials = Trials(Roster(KEYS))
    trials.hear_audits({peer: accuse_of(peer) for peer in heard}, roles)
    assert not trials.audits_are_open
    trials.hear_audits({peer: accuse_of(peer) for peer in KEYS}, roles)  # audits are heard once
    assert trials.owed_audits(roles, due) == (owed, unaudited)
    guilty = {KEYS[2], KEYS[4]}
    trials.judgements = tuple(
        Judgement(None, peer, ChargeKind.COVER, STEP, 0, 0, GuiltySide.ACCUSED) for peer in sorted(guilty)
    )
    left = tuple(audit for audit in owed if audit.target not in guilty)
    assert trials.owed_audits(roles, due) == (left, tuple(peer for peer in unaudited if peer not in guilty))


@pytest.mark.parametrize("verdict", [None, GuiltySide.ACCUSER], ids=["dismissed", "decided"])
def test_a_dismissed_audit_is_owed_too(verdict: GuiltySide | None) -> None:
    """[R7, T4] Its auditor was heard, but too few jurors were: else one crash in the trial's step would free the liar."""
    audits: dict[PeerId, tuple[AuditDuty, ...]] = {
        KEYS[0]: (AuditDuty(KEYS[2], STEP),),
        KEYS[1]: (AuditDuty(KEYS[3], STEP),),
    }
    roles, trials = Roles(audits, KEYS[:2], KEYS[2:], (0, 1)), Trials(Roster(KEYS))
    trials.hear_audits({peer: accuse_of(peer) for peer in KEYS}, roles)
    trials.judgements = (Judgement(KEYS[0], KEYS[2], ChargeKind.GRADIENT, STEP, None, 0, verdict),)
    due = PendingAudits(STEP, KEYS[2:])
    assert trials.owed_audits(roles, due) == ((FIRST, ()) if verdict is None else ((), ()))


@pytest.mark.parametrize("kind", AUDIT_KINDS)
def test_who_worked_beside_a_liar_is_audited_for_that_step(kind: ChargeKind) -> None:
    """[R8] All lied before anyone could know who would be audited. Who is banned already is left in peace."""
    roles, trials = Roles({KEYS[0]: (AuditDuty(KEYS[2], STEP),)}, KEYS[:1], KEYS[1:], (0, 1)), Trials(Roster(KEYS))
    trials.hear_audits({peer: accuse_of(peer) for peer in KEYS}, roles)
    due = PendingAudits(STEP, KEYS[1:6])
    assert trials.owed_audits(roles, due) == ((), ())
    trials.judgements = (Judgement(KEYS[0], KEYS[2], kind, STEP, None, 0, GuiltySide.ACCUSED),)
    beside = tuple(Owed(peer, STEP, 1) for peer in sorted({*KEYS[1:6]} - {KEYS[2]}))
    assert trials.owed_audits(roles, due) == (beside, ())


@pytest.mark.parametrize(
    ("judgement", "validators"),
    [
        (
            Judgement(KEYS[0], KEYS[2], ChargeKind.GRADIENT, STEP, None, 0, GuiltySide.ACCUSER),
            KEYS[:1],
        ),  # an honest target
        (Judgement(KEYS[0], KEYS[2], ChargeKind.GRADIENT, STEP, None, 0, None), KEYS[:1]),
        (
            Judgement(KEYS[0], KEYS[2], ChargeKind.GRADIENT, STEP - 1, None, 0, GuiltySide.ACCUSED),
            KEYS[:1],
        ),  # nobody knows who else
        (Judgement(None, KEYS[2], ChargeKind.AGGREGATE, STEP + 1, 0, 0, GuiltySide.ACCUSED), KEYS[:1]),
        (
            Judgement(KEYS[0], KEYS[2], ChargeKind.GRADIENT, STEP, None, 0, GuiltySide.ACCUSED),
            (),
        ),  # everyone has just audited
    ],
)
def test_no_other_verdict_has_a_step_audited_again(judgement: Judgement, validators: tuple[PeerId, ...]) -> None:
    """[R8] Else one liar could have the same work audited over and over."""
    roles, trials = Roles({KEYS[0]: (AuditDuty(KEYS[3], STEP),)}, validators, KEYS[1:], (0, 1)), Trials(Roster(KEYS))
    trials.hear_audits({peer: accuse_of(peer) for peer in KEYS}, roles)
    trials.judgements = (judgement,)
    assert trials.owed_audits(roles, PendingAudits(STEP, KEYS[1:6])) == ((), ())


def test_an_audit_that_nobody_could_be_dealt_is_owed_and_in_the_end_unaudited() -> None:
    """[R7] The only validator is the one that is owed: it cannot audit itself, and the record says so."""
    roles = Roles({KEYS[0]: (AuditDuty(KEYS[2], STEP),)}, KEYS[:1], KEYS[1:], (0, 1))
    trials = Trials(Roster(KEYS))
    trials.hear_audits({KEYS[0]: accuse_of(KEYS[0])}, roles)
    for times in range(1, MOST_OWED):
        due = PendingAudits(STEP, KEYS[2:], owed=(Owed(KEYS[0], STEP - times, times),))
        assert trials.owed_audits(roles, due) == ((Owed(KEYS[0], STEP - times, times + 1),), ())
    due = PendingAudits(STEP, KEYS[2:], owed=(Owed(KEYS[0], STEP - MOST_OWED, MOST_OWED),))
    assert trials.owed_audits(roles, due) == ((), KEYS[:1])


@cache
def _undisturbed() -> ProtocolSimulation:
    return finished(LIE_ONCE, until=lambda s: bool(s.bans))


@cache
def once_and_cut(*cuts: tuple[int, int]) -> tuple[ProtocolSimulation, PeerId]:
    """The liar's auditor loses power in step 4, at this call; then the one drawn in its place, at that call, and so on."""
    probe = _undisturbed()
    judgement = verify_ban(probe.evidence[0].text).judgement
    assert (probe.bans[0].step, judgement.step) == (4, 3)
    assert judgement.accuser is not None
    lost, target = [PeerId(judgement.accuser)], PeerId(judgement.target)
    for _ in cuts[1:]:
        state = _cut(lost, cuts).states
        seen = next(s for peer, s in state.items() if s.step == 4 + len(lost) and peer not in lost)
        roles = draw_roles(probe.run, seen.roster, seen.randomness, seen.pending_audits)
        (second,) = [auditor for auditor, audit in dealt_audits(roles) if audit == AuditDuty(target, 3)]
        lost.append(second)
    return run_on(_cut(lost, cuts, stop=False)), target


def _cut(lost: list[PeerId], cuts: tuple[tuple[int, int], ...], stop: bool = True) -> ProtocolSimulation:
    simulation = ProtocolSimulation(LIE_ONCE)
    for peer, cut in zip(lost, cuts, strict=False):
        wrap_channel(simulation, peer, partial(DroppingChannel, drop_out=DropOut(*cut)))
    return run_on(simulation, lambda s: s.steps_done == 4 + len(lost)) if stop else simulation


@pytest.mark.long
@pytest.mark.parametrize(
    ("losses", "call"), [(1, BEFORE_REPORT), (2, BEFORE_REPORT), (3, BEFORE_REPORT), (1, BEFORE_ACCUSE)]
)
def test_an_audit_that_is_lost_with_its_validator_is_owed_and_convicts(losses: int, call: int) -> None:
    """[R7, K1, E1] The lie of step 3 is judged up to four steps later, with evidence that reaches back so far. Where a coin was
    missed everyone audits next, five of them this: it is lost no second time."""
    simulation, target = once_and_cut(*((4 + lost, call) for lost in range(losses)))
    assert kept_promises(simulation) == {simulation.numbers[target]: ChargeKind.GRADIENT}
    by_step = records(simulation)
    assert len(simulation.gone) == losses
    assert all(isinstance(why, PowerCutError) for why in simulation.gone.values())
    for lost in range(losses):
        record = by_step[4 + lost]
        assert Owed(target, 3, lost + 1) in record.owed  # beside what the lost one was to audit of the step before
        (gone,) = [
            peer for peer in simulation.gone if peer in (record.struck if call == BEFORE_ACCUSE else record.absent)
        ]
        assert [old.absent for old in by_step].count((gone,)) == 1
    # Where a coin was missed it was still dealt audits in the next step, but others have the same targets.
    assert all(record.owed == () for record in by_step if not 4 <= record.step < 4 + losses)
    assert all(target != owed.target or owed.step == 3 for record in by_step for owed in record.owed)
    assert all(record.unaudited == () for record in by_step)
    (ban,), (evidence,) = simulation.bans, simulation.evidence
    proof = verify_ban(evidence.text)
    assert (ban.step, proof.judgement.step, proof.disputed) == (4 + losses, 3, by_step[3])
    assert [record.step for record in proof.before] == list(range(losses, 4 + losses))
    assert evidence.training is not None
    assert recompute(proof, evidence.training) is Recomputed.CONFIRMED
    assert "of step 3" in proof.sentence()


@pytest.mark.long
def test_an_audit_that_is_lost_four_times_is_dropped_and_the_record_says_so() -> None:
    """[R7, K1] Audit records are not kept for ever: the liar of step 3 gets away with it, and everyone can see that."""
    simulation, target = once_and_cut(*((4 + lost, BEFORE_REPORT) for lost in range(4)))
    assert kept_promises(simulation) == {}
    by_step = records(simulation)
    of_the_lie = [[owed for owed in record.owed if (owed.target, owed.step) == (target, 3)] for record in by_step]
    assert of_the_lie == [[Owed(target, 3, record.step - 3)] if 4 <= record.step < 7 else [] for record in by_step]
    assert [record.unaudited for record in by_step] == [(target,) if record.step == 7 else () for record in by_step]
    witness = simulation.states[next(peer for peer in simulation.honest if peer not in simulation.gone)]
    assert 3 not in witness.audit_records
    assert len(simulation.gone) == 4


DISMISSED = dataclasses.replace(LIE_ONCE, seed=13)  # the same, if it is to be done again by others


@pytest.mark.long
@pytest.mark.parametrize("dismissals", [1, 3, 4])
def test_a_trial_that_is_dismissed_is_held_again(dismissals: int) -> None:
    """[R7, T4] Too few vote, the liar is not convicted; the audit is dealt again, three times at most."""
    simulation, steps = ProtocolSimulation(DISMISSED), tuple(range(4, 4 + dismissals))
    for peer in simulation.honest[:8]:
        wrap_channel(simulation, peer, lambda channel: AlteringChannel(channel, silent_in(steps, Vote)))
    run_on(simulation)
    by_step = records(simulation)
    probe = verify_ban(finished(DISMISSED, until=lambda s: bool(s.bans)).evidence[0].text)
    guilty = simulation.numbers[probe.banned]
    assert kept_promises(simulation) == ({guilty: ChargeKind.GRADIENT} if dismissals < 4 else {})
    for step in steps:
        (judgement,) = [j for j in by_step[step].judgements if j.target == probe.banned]
        assert judgement.verdict is None
    times = [{owed.times for owed in by_step[step].owed if owed.target == probe.banned} for step in steps]
    assert times == [{1}, {2}, {3}, set()][:dismissals]
    assert [record.step for record in by_step if probe.banned in record.unaudited] == ([7] if dismissals == 4 else [])


def test_evidence_of_an_owed_audit_says_that_it_was_owed() -> None:
    """[R7, E1] Without the debt in the record before, the accuser was drawn for something else."""
    simulation, _ = once_and_cut((4, BEFORE_REPORT))
    forger = Forger(simulation, simulation.evidence[0])
    assert forger.refusal(before=forger.last()) == ""
    assert "not drawn" in forger.refusal(before=forger.last(owed=()))
    assert "neighbouring" in forger.refusal(before=forger.file.before[-1:])
