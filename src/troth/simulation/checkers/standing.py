"""Honest peers whom neither network nor power fails keep their place: never absent, struck or expelled."""

from troth.crypto import PeerId
from troth.simulation.world import World


def standing(world: World) -> list[str]:
    broken = []
    for record in world.records:
        held = {"absent": record.absent, "struck": (*record.struck, *record.slowed), "expelled": record.expelled}
        for what, peers in held.items():
            for number in sorted(world.steady & {world.numbers.get(PeerId(peer)) for peer in peers}):
                broken.append(f"step {record.step}: {number} is honest, and {what}")
    return broken
