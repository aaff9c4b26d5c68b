"""Timeouts: all agree on them, and nobody makes the others wait without a consequence."""

from collections import Counter

from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.records import StepRecord
from troth.protocol.wire.messages import Phase
from troth.protocol.wire.phases import PHASES
from troth.simulation.chaos.world import World


def timeouts(world: World) -> list[str]:
    """All wait equally long (SPEC Q8), and each slow path costs a place, a strike, or a new link dispute.

    A step was decided by certificates alone if neither its record nor the next, which hears of its end, blames anybody.
    """
    pairs = Counter(pair for record in world.records for pair in record.link_disputes)
    broken = [
        f"{world.name(one)} and {world.name(other)} did not reach each other {count} times"
        for (one, other), count in sorted(pairs.items())
        if count > 1
    ]
    broken += [f"several timeouts in step {step}: {seen}" for step, seen in world.timeouts.items() if len(seen) > 1]
    for before, outcome, after in zip(world.witness, world.witness[1:], world.witness[2:], strict=False):
        step = outcome.record.step
        took = world.step_ends[step] - world.step_ends[step - 1]
        relayed = bool(before.state.roster.disputed_links())
        if (
            took > max(_longest(held, relayed) for held in world.timeouts[step])
            and outcome.attempts == 1
            and outcome.record.incarnation == before.record.incarnation  # else the power was gone
            and before.state.roster.still < 2  # else members may have rested before it (G3)
            and not _blames(outcome.record)
            and not _blames(after.record)
        ):
            broken.append(f"step {step} took {took:.0f} s, and nothing is held against anybody")
    return broken


def _blames(record: StepRecord) -> bool:
    held = (record.absent, record.struck, record.slowed, record.link_disputes, record.expelled, record.judgements)
    return any(held)


def _longest(timeouts: Timeouts, relayed: bool) -> float:
    """Longest step without a trial, with every value and every view just in time (SPEC Q1, Q2, F2)."""
    phases = [row.allowance for phase, row in PHASES.items() if phase not in (Phase.VOTE, Phase.CLOSE)]
    allowed = sum(one.deltas * timeouts.delta + one.exchanges * timeouts.exchange for one in phases)
    computed = sum(one.gradients + one.audits for one in phases) * timeouts.compute
    return allowed + computed + len(phases) * timeouts.delta * (6 if relayed else 4) + timeouts.delta
