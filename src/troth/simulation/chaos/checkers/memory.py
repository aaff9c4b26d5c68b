"""Memory is bounded: whatever liars send, a peer holds no more of each member's than there is room for, at any time."""

from troth.simulation.chaos.world import BOUNDS, World

_WORK = 1 << 20  # bytes: what honest peers say in a step, their envelopes and certificates


def memory(world: World) -> list[str]:
    """Measured on what a channel holds, amid steps, and not by its own account of it."""
    most = world.plan.peers * (BOUNDS.room + _WORK)
    if world.most_held > most:
        return [f"a peer held {world.most_held:,} bytes of others, at most {most:,}"]
    return []
