"""The closing step of a run (SPEC U4): nobody contributes, everyone audits, and the model is signed, or goes back a step.

Without it the last step would be the one to lie in, since audits come a step later.
"""

from dataclasses import replace
from typing import TypeVar

from troth.crypto import PeerId
from troth.protocol.core.channel import Said
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import PendingAudits, closing_roles
from troth.protocol.core.run import LeftOutError
from troth.protocol.core.state import LastRecord, Outcome, Peer, State
from troth.protocol.step.attempt import Attempt, StepContext, expect_this_step
from troth.protocol.step.conclude import outcome
from troth.protocol.step.disputes import audit_targets, vote
from troth.protocol.step.step import sign_end, sign_last
from troth.protocol.step.trials import AUDIT_KINDS, Docket, Trials
from troth.protocol.wire.messages import NO_BASIS, Accuse, ChargeKind, Commit, Phase

T = TypeVar("T")


async def close_run(peer: Peer[T], state: State[T]) -> Outcome[T]:
    """Certify the last record, audit the last step, vote, and sign the closing record."""
    context = StepContext(peer, state, closing_roles(peer.run, state.roster, state.randomness, state.pending_audits))
    expect_this_step(context)
    attempt = await certify(context)  # [U2]
    trials = Trials(state.roster)
    accuses = await accuse(attempt)  # [D1–D3]
    docket = Docket(state.step, trials.hear_audits(accuses, context.roles), peers=state.roster.admitted)  # [T1, T2]
    votes = await vote(attempt, docket)  # [T3]
    trials.judge(attempt.number, accuses, votes, docket)  # [T4]
    equivocations = peer.noticed.equivocations(state.step)
    trials.convict_equivocators(equivocations)  # [Q6]
    ended = closed(attempt, trials)  # [U4]
    assert ended.last is not None
    made = outcome(attempt, trials, equivocations, ended.last.record, ended)
    return replace(made, closing=await sign_end(attempt, ended))


async def certify(context: StepContext[T]) -> Attempt[T]:
    """Announce a Commit without a gradient: it signs the last record."""
    peer, several = context.peer, context.peer.run.parameters.deviation is not None
    message = Commit(
        root=None,
        coin_a=NO_BASIS,  # nothing is drawn any more
        coin_b=NO_BASIS,
        hardware=peer.work.hardware_class() if several else None,
        took=peer.noticed.latencies(context.state.step),
        signature=sign_last(context),
    )
    coins = peer.entropy.coins(context.state.step, 0)
    view = context.view(frozenset(context.state.roster.members))
    return Attempt.first(context, coins, await peer.channel.announce(context.slot(Phase.COMMIT), message, view))


async def accuse(attempt: Attempt[T]) -> Said:
    """Audit this peer's targets, and announce its accusations."""
    context = attempt.context
    found = [] if context.peer.observing else await audit_targets(attempt)
    message = Accuse(tuple(found), NO_BASIS)
    announced = await context.peer.channel.announce(attempt.slot(Phase.ACCUSE), message, attempt.view)
    attempt.need_quorum(announced)  # [N4]
    return {peer: announced[peer] for peer in sorted(attempt.members & announced.keys())}


def closed(attempt: Attempt[T], trials: Trials) -> State[T]:
    """State after the closing step. If a member is convicted of work of the last step, the model is the one before that step:
    no step is made twice, or liars could choose how often."""
    context, peer, state = attempt.context, attempt.context.peer, attempt.context.state
    owed, unaudited = trials.owed_audits(context.roles, state.pending_audits)
    training, undone = state.training, spoiled(trials, state.pending_audits)
    if undone:
        if state.step - 1 not in state.audit_records:
            raise LeftOutError("the last step was taken back, and this peer does not have the model before it")
        training = state.audit_records[state.step - 1].training
    model = peer.work.digest(training)  # its content: anyone who holds the weights can check them [U5, E4]
    record = StepRecord(
        step=state.step,
        members=state.roster.members,
        contributors=(),
        roots=(),
        parts=1,
        seed_randomness=state.earlier_randomness,
        randomness=state.randomness,
        state_before=state.model,
        state_after=model,
        updated=False,
        updates=state.scales.updates,
        tau=state.scales.tau,
        spread=0.0,
        length=0.0,
        norm=0.0,
        factor=1.0,
        judgements=trials.judgements,
        absent=tuple(sorted(attempt.out - trials.banned)),
        unaudited=tuple(sorted({*unaudited, *(PeerId(audit.target) for audit in owed)})),
        incarnation=state.incarnation,
        closing=True,
        undone=undone,
        changed=state.roster.changed,
    )
    record = state.roster.marked(record)  # [G4]
    return replace(
        state,
        step=state.step + 1,
        roster=state.roster.after(record),
        training=training,
        model=model,
        pending_audits=PendingAudits(state.step, ()),
        last=LastRecord.of(record, state.roster, peer.tools),
    )


def spoiled(trials: Trials, last: PendingAudits) -> bool:
    """Tell whether a contributor was convicted of work of the last step. A candidate's gradient went into nothing (SPEC J5), so
    nothing is taken back for it: else any stranger could have the last update taken back."""
    kinds, worked = (*AUDIT_KINDS, ChargeKind.COVER), set(last.contributors)
    convicted = (j for j in trials.judgements if j.step == last.step and j.kind in kinds and j.banned == j.target)
    return any(j.target in worked for j in convicted)
