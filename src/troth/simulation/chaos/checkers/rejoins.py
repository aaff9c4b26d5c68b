"""Who comes back is who was gone: nobody takes another's place."""

from troth.crypto import PeerId
from troth.simulation.chaos.world import World


def rejoins(world: World) -> list[str]:
    """Honest peers come back, and liars after a blackout or where the plan says so (SPEC B3)."""
    broken = []
    expected = world.plan.shaky | (world.plan.lying if world.plan.blackout or world.plan.liars_return else frozenset())
    for record in world.records:
        for rejoin in record.returned:
            gone, back = world.numbers.get(PeerId(rejoin.member)), world.numbers.get(PeerId(rejoin.key))
            if back != gone or gone not in expected:
                broken.append(
                    f"step {record.step}: somebody else came back in the place of {world.name(rejoin.member)}"
                )
    return broken
