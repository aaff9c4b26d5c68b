"""A ban is for good: whoever was banned is a member of no later step, under whatever key."""

from troth.simulation.chaos.world import World


def bans(world: World) -> list[str]:
    """Else it would go on voting, while the others reckon with one liar less (SPEC T5, B8, G1)."""
    broken, out, heirs = [], set[bytes](), list[tuple[bytes, bytes]]()
    for record in world.records:
        for peer in sorted(out & set(record.members)):
            broken.append(f"step {record.step}: {world.name(peer)} was banned before, and is a member")
        out |= set(record.banned)
        heirs += [(knock.member, knock.key) for knock in record.returned]
        for old, new in heirs:
            out |= {new} if old in out else set()
    return broken
