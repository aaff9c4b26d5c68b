"""No honest key signs two messages for one place, whatever happened to its machine: liars could have it banned for that."""

from troth.simulation.chaos.world import World


def slots(world: World) -> list[str]:
    return [
        f"step {place.step}: {world.numbers[peer]} signed {len(said)} messages for phase {place.phase}, attempt {place.attempt}"
        for (peer, place), said in world.said.items()
        if len(said) > 1
    ]
