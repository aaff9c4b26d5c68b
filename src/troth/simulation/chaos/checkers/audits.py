"""Audits: all that were drawn are made, a lost one is owed and then dropped in the open, and a lie that is audited is a ban."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from troth.crypto import PeerId
from troth.protocol.core.records import MOST_OWED
from troth.protocol.core.roles import NO_PENDING_AUDITS, Audit, PendingAudits, Roles, draw_roles, first_randomness
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import Outcome
from troth.protocol.step.trials import AUDIT_KINDS
from troth.protocol.wire.messages import Verdict
from troth.simulation.chaos.world import World
from troth.training.work import Training


@dataclass(frozen=True)
class _Drawn:
    """One step with the roles that its roster draws, computed again from the outcome before."""

    outcome: Outcome[Training]
    roster: Roster
    pending: PendingAudits
    roles: Roles

    @property
    def step(self) -> int:
        return self.outcome.record.step


def _drawn_steps(world: World) -> Iterator[_Drawn]:
    pending, randomness, roster = NO_PENDING_AUDITS, first_randomness(world.run)[0], Roster.founding(world.run)
    incarnation = 0
    for outcome in world.witness:
        record = outcome.record
        pending = pending if record.incarnation == incarnation else replace(pending, everyone=True)
        yield _Drawn(outcome, roster, pending, draw_roles(world.run, roster, randomness, pending))
        pending, randomness, roster = PendingAudits.after(record), outcome.state.randomness, outcome.state.roster
        incarnation = record.incarnation


def caught(world: World) -> list[str]:
    """A peer that lied about a gradient, and was audited by an honest peer that was heard, is banned in that step."""
    broken = []
    lies: dict[int, set[bytes]] = {}
    for drawn in _drawn_steps(world):
        record, audits_by = drawn.outcome.record, drawn.roles.audits
        lies[record.step] = {peer for peer in record.contributors if (peer, record.step) in world.forged}
        heard = drawn.outcome.state.audit_records[record.step].accuses.keys()
        for auditor in world.honest & set(audits_by) & heard:
            for audit in audits_by[auditor]:
                if audit.target in lies.get(audit.step, ()) and audit.target not in record.banned:
                    broken.append(
                        f"step {record.step}: {world.name(audit.target)} lied in step {audit.step}, was audited, and stays"
                    )
    return broken


def audits(world: World) -> list[str]:
    """Auditors do what they were drawn for; a lost audit is owed; who worked beside a liar, or came back, is audited."""
    broken = []
    for drawn in _drawn_steps(world):
        found = (
            *_not_as_drawn(world, drawn),
            *_lost(world, drawn),
            *_beside(world, drawn),
            *_first_step_back(world, drawn.step),
        )
        broken += [f"step {drawn.step}: {text}" for text in found]
    return broken


def _not_as_drawn(world: World, drawn: _Drawn) -> Iterator[str]:
    """SPEC R4, R6, R7."""
    step = drawn.step
    keys = {world.numbers[peer]: peer for peer in drawn.roster.members if peer in world.numbers}
    for number, outcomes in sorted(world.outcomes.items()):
        if step in outcomes and number in keys and not outcomes[step].observed:
            wanted, audited = drawn.roles.audits.get(keys[number], ()), outcomes[step].audited
            if set(audited) != set(wanted):
                yield f"{number} was drawn to audit {len(wanted)} others, and audited {len(audited)}, not the same"


def _lost(world: World, drawn: _Drawn) -> Iterator[str]:
    """An audit that came to nothing is owed, and after the third time dropped; the record says both (SPEC R7)."""
    record, heard = drawn.outcome.record, drawn.outcome.accuses[min(drawn.outcome.accuses)]
    dismissed = {
        Audit(PeerId(j.target), j.step) for j in record.judgements if j.kind in AUDIT_KINDS and j.verdict is None
    }
    done = {audit for auditor in heard for audit in drawn.roles.audits.get(auditor, ())} - dismissed
    dealt = {audit for mine in drawn.roles.audits.values() for audit in mine}
    banned = {*drawn.roster.banned, *record.banned}
    before = {(owed.target, owed.step): owed.times for owed in drawn.pending.owed}
    owed = {(owed.target, owed.step) for owed in record.owed}
    for audit in sorted(dealt - done, key=lambda audit: (audit.target, audit.step)):
        if audit.target in banned or (audit.target, audit.step) in owed:
            continue
        if before.get((audit.target, audit.step), 0) < MOST_OWED:
            yield f"the audit of {world.name(audit.target)} came to nothing, and is not owed"
        elif audit.target not in record.unaudited:
            yield f"the audit of {world.name(audit.target)} came to nothing too often, and nobody says so"


def _beside(world: World, drawn: _Drawn) -> Iterator[str]:
    """After a ban everyone audits; if it was a validator that found the liar, all who contributed beside it too (SPEC R6, R8)."""
    record, step = drawn.outcome.record, drawn.pending.step
    if set(record.banned) & set(drawn.roster.members) and not PendingAudits.after(record).everyone:
        yield "a member was banned, and the next step is like any other"
    convicted = {
        j.target for j in record.judgements if j.kind in AUDIT_KINDS and (j.step, j.verdict) == (step, Verdict.ACCUSED)
    }
    if not drawn.roles.validators or convicted.isdisjoint(drawn.pending.contributors):
        return
    owed = {audit.target for audit in record.owed if audit.step == step}
    for peer in sorted(set(drawn.pending.contributors) - {*drawn.roster.banned, *record.banned, *owed}):
        yield f"{world.name(peer)} contributed beside a liar in step {step}, and is not audited for it"


def _first_step_back(world: World, step: int) -> Iterator[str]:
    """A member back since two steps worked in the last one, and is audited now (SPEC B4), if all validators are honest."""
    if step < 2:
        return
    record, before, came = world.records[step], world.records[step - 1], world.records[step - 2].returned
    validators = {peer for peer in record.members if peer not in record.contributors}
    if before.struck or before.banned or not validators <= world.honest or record.incarnation != before.incarnation:
        return
    theirs = [world.outcomes[world.numbers[PeerId(peer)]].get(step) for peer in validators]
    if not theirs or None in theirs:
        return  # some were lost on the way, and their audits with them
    audited = {audit.target for outcome in theirs if outcome for audit in outcome.audited if audit.step == step - 1}
    for peer in sorted({PeerId(rejoin.key) for rejoin in came if rejoin.key in before.contributors} - audited):
        if peer not in before.banned and peer not in {owed.target for owed in record.owed}:
            yield f"{world.numbers.get(peer)} is back, and nobody audits its first step"
