"""No honest key signs two messages for one place, whatever happened to its machine: liars could have it banned for that."""

from troth.simulation.chaos.world import World


def slots(world: World) -> list[str]:
    return [
        f"step {slot.step}: {world.numbers[peer]} signed {len(said)} messages for phase {slot.phase}, attempt {slot.attempt}"
        for (peer, slot), said in world.said.items()
        if len(said) > 1
    ]
