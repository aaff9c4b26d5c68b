"""Honest peers whom neither network nor power fails keep their place: never absent, struck or expelled."""

from troth.crypto import PeerId
from troth.simulation.chaos.world import World


def standing(world: World) -> list[str]:
    """Within the full guarantee: where more fail than there may be liars, their lines are held against others too (SPEC F3)."""
    if not world.plan.within:
        return []
    broken = []
    for record in world.records:
        held = {"absent": record.absent, "struck": (*record.struck, *record.slowed), "expelled": record.expelled}
        for what, peers in held.items():
            for number in sorted(world.steady & {world.numbers.get(PeerId(peer)) for peer in peers}):
                broken.append(f"step {record.step}: {number} is honest, and {what}")
    return broken
