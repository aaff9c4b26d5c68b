"""Whoever looks on, to come back, sees what happened: nobody can mislead it, and it need not begin again."""

from itertools import pairwise

from troth.crypto import PeerId
from troth.simulation.chaos.checkers.comeback import _well_from
from troth.simulation.chaos.world import World


def follows(world: World) -> list[str]:
    """From the first step on that it saw to its end, absent and well. Not for those whose packets go on getting lost."""
    broken = []
    absent = {world.numbers.get(PeerId(p)): record.step for record in reversed(world.records) for p in record.absent}
    for number in sorted(world.plan.shaky & absent.keys() - world.plan.network.loss.keys()):
        well = _well_from(world, number)
        looking = {step for step, outcome in world.outcomes[number].items() if outcome.observed}
        ends = [step for step in sorted(looking) if step > absent[number]]
        seen = [step for step in ends if well is not None and world.step_ends[step] > well]
        for one, other in pairwise(seen):
            was_member = any(step in world.outcomes[number] for step in range(one + 1, other))  # and was left out again
            if other != one + 1 and not was_member:
                broken.append(f"{number} looked on in step {one}, and lost sight of what happened until step {other}")
    return broken
