"""Who was drawn to audit does so; an audit that was lost is owed, and then dropped in the open; who comes back is audited."""

from collections.abc import Iterator
from dataclasses import replace

from troth.crypto import PeerId
from troth.protocol.core.records import MOST_OWED
from troth.protocol.core.roles import NO_PENDING_AUDITS, Audit, PendingAudits, Roles, draw_roles, first_randomness
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import Outcome
from troth.protocol.step.trials import AUDIT_KINDS
from troth.simulation.chaos.world import World
from troth.training.work import Training


def audits(world: World) -> list[str]:
    broken = []
    due, randomness, roster = NO_PENDING_AUDITS, first_randomness(world.run)[0], Roster.founding(world.run)
    incarnation = 0
    for outcome in world.witness:
        due = due if outcome.record.incarnation == incarnation else replace(due, everyone=True)
        step, roles = outcome.record.step, draw_roles(world.run, roster, randomness, due)
        found = (
            *_not_as_drawn(world, step, roster, roles),
            *_lost(world, outcome, roster, roles, due),
            *_back(world, step),
        )
        broken += [f"step {step}: {what}" for what in found]
        due, randomness, roster = PendingAudits.after(outcome.record), outcome.state.randomness, outcome.state.roster
        incarnation = outcome.record.incarnation
    return broken


def _not_as_drawn(world: World, step: int, roster: Roster, roles: Roles) -> Iterator[str]:
    """SPEC R4, R6, R7."""
    keys = {world.numbers[peer]: peer for peer in roster.members if peer in world.numbers}
    for number, outcomes in sorted(world.outcomes.items()):
        if step in outcomes and number in keys and not outcomes[step].observed:
            drawn = roles.audits.get(keys[number], ())
            if set(outcomes[step].audited) != set(drawn):
                yield f"{number} was drawn to audit {len(drawn)} others, and audited {len(outcomes[step].audited)}, not the same"


def _lost(world: World, outcome: Outcome[Training], roster: Roster, roles: Roles, due: PendingAudits) -> Iterator[str]:
    """What came to nothing is owed, and after the third time dropped, and the record says both (SPEC R7)."""
    record, heard = outcome.record, outcome.accuses[min(outcome.accuses)]
    dismissed = {
        Audit(PeerId(j.target), j.step) for j in record.judgements if j.kind in AUDIT_KINDS and j.verdict is None
    }
    done = {audit for auditor in heard for audit in roles.audits.get(auditor, ())} - dismissed
    dealt = {audit for mine in roles.audits.values() for audit in mine}
    banned, before = {*roster.banned, *record.banned}, {(owed.target, owed.step): owed.times for owed in due.owed}
    owed = {(owed.target, owed.step) for owed in record.owed}
    for audit in sorted(dealt - done, key=lambda audit: (audit.target, audit.step)):
        if audit.target in banned or (audit.target, audit.step) in owed:
            continue
        if before.get((audit.target, audit.step), 0) < MOST_OWED:
            yield f"the audit of {world.name(audit.target)} came to nothing, and is not owed"
        elif audit.target not in record.unaudited:
            yield f"the audit of {world.name(audit.target)} came to nothing too often, and nobody says so"


def _back(world: World, step: int) -> Iterator[str]:
    """Whoever came back two steps ago worked in the last one, and is audited now (SPEC B4), if that is up to honest peers."""
    if step < 2:
        return
    record, before, came = world.records[step], world.records[step - 1], world.records[step - 2].returned
    validators = {peer for peer in record.members if peer not in record.contributors}
    if before.struck or not validators <= world.honest or record.incarnation != before.incarnation:
        return
    theirs = [world.outcomes[world.numbers[PeerId(peer)]].get(step) for peer in validators]
    if not theirs or None in theirs:
        return  # some were lost on the way, and their audits with them
    audited = {audit.target for outcome in theirs if outcome for audit in outcome.audited if audit.step == step - 1}
    for peer in sorted({PeerId(rejoin.key) for rejoin in came if rejoin.key in before.contributors} - audited):
        if peer not in before.banned and peer not in {owed.target for owed in record.owed}:
            yield f"{world.numbers.get(peer)} is back, and nobody audits its first step"
