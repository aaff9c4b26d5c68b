"""After the power is back, or the network has healed, whoever was gone is a member again."""

from troth.crypto import PeerId
from troth.protocol.core.roster import Roster
from troth.simulation.chaos.world import BOUNDS, World

_STEPS = 9  # that it may take: two to look on, and some more if it is disturbed


def comeback(world: World) -> list[str]:
    """Not for those whose packets go on getting lost, nor for who was put out: there the door is the way back."""
    if not world.records:
        return []
    roster: Roster = world.witness[-1].state.roster
    put_out = {world.numbers.get(PeerId(p)) for record in world.records for p in (*record.banned, *record.expelled)}
    members = {world.numbers.get(peer) for peer in roster.members}
    broken, most = [], BOUNDS.slowest.until_left(len(world.run.founders))
    for number in sorted(world.plan.shaky - world.plan.network.loss.keys() - members - put_out):
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
    """From when on nothing is in its way any more, if that came."""
    cut = world.plan.crashes.get(number, world.plan.blackout.get(number))
    if cut is not None and (cut.down is None or number not in world.power_back):
        return None
    heals = max((cut.end for cut in world.plan.network.cuts if number in cut.isolated), default=0.0)
    return max(heals, world.power_back.get(number, 0.0))
