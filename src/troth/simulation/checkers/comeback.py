"""After the power is back, or the network has healed, whoever was gone is a member again."""

from troth.crypto import PeerId
from troth.protocol.roster import Roster
from troth.simulation.world import World

_STEPS, _SECONDS = 9, 100  # that it may take: two steps to look on, and some more if it is disturbed


def comeback(world: World) -> list[str]:
    """Not for those whose packets go on getting lost, nor for who was put out: there the door is the way back."""
    if not world.records:
        return []
    roster: Roster = world.witness[-1].state.roster
    put_out = {peer for record in world.records for peer in (*record.banned, *record.expelled)}
    members = {world.numbers.get(peer) for peer in roster.members}
    broken = []
    for number in sorted(world.plan.shaky - world.plan.network.loss.keys()):
        well = _well_from(world, number)
        steps_since = sum(end > well for end in world.step_ends.values()) if well is not None else 0
        if (
            steps_since >= _STEPS
            and number not in members
            and number not in {world.numbers[PeerId(peer)] for peer in put_out}
        ):
            broken.append(f"{number} was gone, is well since {well:.0f} s and {steps_since} steps, and is no member")
    return broken


def _well_from(world: World, number: int) -> float | None:
    """From when on nothing is in its way any more, if that came."""
    cut = world.plan.crashes.get(number, world.plan.blackout.get(number))
    if cut is not None and (cut.down is None or number not in world.power_back):
        return None
    heals = max((cut.end for cut in world.plan.network.cuts if number in cut.apart), default=0.0)
    return max(heals, world.power_back.get(number, 0.0))
