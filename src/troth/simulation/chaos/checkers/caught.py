"""Whoever lied about a gradient and was audited by an honest peer that was heard is banned in that step."""

from dataclasses import replace

from troth.protocol.core.roles import NO_PENDING_AUDITS, PendingAudits, draw_roles, first_randomness
from troth.protocol.core.roster import Roster
from troth.simulation.chaos.world import World


def caught(world: World) -> list[str]:
    broken = []
    due, randomness, incarnation = NO_PENDING_AUDITS, first_randomness(world.run)[0], 0
    lies: dict[int, set[bytes]] = {}
    for outcome in world.witness:
        record = outcome.record
        roster = world.witness[record.step - 1].state.roster if record.step else Roster.founding(world.run)
        due = due if record.incarnation == incarnation else replace(due, everyone=True)
        roles = draw_roles(world.run, roster, randomness, due)
        lies[record.step] = {peer for peer in record.contributors if (peer, record.step) in world.forged}
        heard = outcome.state.audit_records[record.step].accuses.keys()
        for auditor in world.honest & set(roles.audits) & heard:
            for audit in roles.audits[auditor]:
                if audit.target in lies.get(audit.step, ()) and audit.target not in record.banned:
                    broken.append(
                        f"step {record.step}: {world.name(audit.target)} lied in step {audit.step}, was audited, and stays"
                    )
        due, randomness, incarnation = PendingAudits.after(record), outcome.state.randomness, record.incarnation
    return broken
