"""Returns: peers that were gone come back, see what happened meanwhile, and take nobody else's place."""

from itertools import pairwise

from troth.crypto import PeerId
from troth.protocol.core.roster import Roster
from troth.simulation.chaos.world import BOUNDS, World

_STEPS = 9  # that coming back may take: two to observe, and some more if it is disturbed


def rejoins(world: World) -> list[str]:
    """A member that comes back is the one that was gone (SPEC B3).

    Honest peers come back, and liars after a blackout or where the plan says so.
    """
    broken = []
    expected = {*world.plan.shaky, *world.plan.strangers}
    expected |= world.plan.lying if world.plan.blackout or world.plan.liars_return else frozenset()
    for record in world.records:
        for rejoin in record.returned:
            gone, back = world.numbers.get(PeerId(rejoin.member)), world.numbers.get(PeerId(rejoin.key))
            if back != gone or gone not in expected:
                broken.append(
                    f"step {record.step}: somebody else came back in the place of {world.name(rejoin.member)}"
                )
    return broken


def follows(world: World) -> list[str]:
    """A peer that observes, to come back, misses no step: nobody misleads it, and it need not begin again.

    From the first step on that it saw to its end, absent and well. Not for peers whose packets go on getting lost.
    """
    broken = []
    absent = {world.numbers.get(PeerId(p)): record.step for record in reversed(world.records) for p in record.absent}
    for number in sorted(world.plan.shaky & absent.keys() - world.plan.network.loss.keys()):
        well = _well_from(world, number)
        observed = {step for step, outcome in world.outcomes[number].items() if outcome.observed}
        ends = [step for step in sorted(observed) if step > absent[number]]
        seen = [step for step in ends if well is not None and world.step_ends[step] > well]
        for one, other in pairwise(seen):
            was_member = any(step in world.outcomes[number] for step in range(one + 1, other))  # and was left out again
            if other != one + 1 and not was_member:
                broken.append(f"{number} observed step {one}, and missed everything until step {other}")
    return broken


def comeback(world: World) -> list[str]:
    """A peer that was gone is a member again, some steps after its power is back or the network has healed.

    Not for peers whose packets go on getting lost, nor for those banned or expelled, whose way back is the newcomers' door.
    """
    if not world.records:
        return []
    roster: Roster = world.witness[-1].state.roster
    ever_expelled = {
        world.numbers.get(PeerId(p)) for record in world.records for p in (*record.banned, *record.expelled)
    }
    members = {world.numbers.get(peer) for peer in roster.members}
    broken, most = [], BOUNDS.slowest.until_left(len(world.run.founders))
    for number in sorted(world.plan.shaky - world.plan.network.loss.keys() - members - ever_expelled):
        well, noticed = _well_from(world, number), world.left_step.get(number)
        if well is None:
            continue
        if noticed is None:
            if world.seconds > well + most:
                broken.append(f"{number} is well since {well:.0f} s, and has not noticed that the others went on")
            continue
        steps_since = sum(end > max(well, noticed) for end in world.step_ends.values())
        if steps_since >= _STEPS:
            broken.append(f"{number} was gone, is well since {well:.0f} s and {steps_since} steps, and is no member")
    return broken


def _well_from(world: World, number: int) -> float | None:
    """When nothing was in its way any more; None if that never came."""
    cut = world.plan.crashes.get(number, world.plan.blackout.get(number))
    if cut is not None and (cut.down is None or number not in world.power_back):
        return None
    heals = max((cut.end for cut in world.plan.network.cuts if number in cut.isolated), default=0.0)
    return max(heals, world.power_back.get(number, 0.0))
