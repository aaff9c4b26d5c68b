"""A ban is for good: whoever was banned is a member of no later step, under whatever key."""

from troth.simulation.chaos.world import World


def bans(world: World) -> list[str]:
    """Else it would go on voting, while the others reckon with one liar less (SPEC T5, B8, G1)."""
    broken, out, successors = [], set[bytes](), list[tuple[bytes, bytes]]()
    for record in world.records:
        for peer in sorted(out & set(record.members)):
            broken.append(f"step {record.step}: {world.name(peer)} was banned before, and is a member")
        out |= set(record.banned)
        successors += [(rejoin.member, rejoin.key) for rejoin in record.returned]
        for old, new in successors:
            out |= {new} if old in out else set()
    return broken
