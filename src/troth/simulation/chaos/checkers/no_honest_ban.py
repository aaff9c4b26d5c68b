"""No honest peer is banned, whatever the liars do and whoever crashes."""

from troth.simulation.chaos.world import World


def no_honest_ban(world: World) -> list[str]:
    banned = {peer for record in world.records for peer in record.banned}
    return [f"peer {world.numbers[peer]} is honest and was banned" for peer in sorted(banned & world.honest)]
