"""Bounds: nobody can make honest peers send, or hold, without end."""

from troth.simulation.chaos.world import BOUNDS, World

_WAITING = 8  # packets in a second, from every peer to every peer, while some wait for the run to restart
_WORK = 1 << 20  # bytes that honest peers say in a step, with envelopes and certificates


def bounds(world: World) -> list[str]:
    """Packets are bounded by attempts, steps and peers."""
    plan, steps = world.plan, max(1, len(world.records))
    peers = plan.peers + len(plan.strangers) + len(plan.leaves) + sum(not cut.journal for cut in plan.crashes.values())
    attempts = sum(outcome.attempts for outcome in world.witness) or 1
    broken = []
    # Five announcements and a vote in an attempt; each sends values, views, certificates and chains of up to two values
    # of every peer to every peer.
    most = (6 * attempts + 6 * steps) * peers * peers * (6 + 2 * peers)
    if world.plan.blackout:  # a peer in no step says so twice in a second, is answered, and asks: as long as it lasts
        most += int(_WAITING * world.seconds) * peers * peers
    if world.packets > most:
        broken.append(f"{world.packets} packets in {steps} steps with {attempts} attempts: at most {most}")
    return broken


def memory(world: World) -> list[str]:
    """At any time a peer holds no more from each member than there is room for, whatever liars send.

    Measured amid steps on what a channel holds, and not by its own account of it.
    """
    most = world.plan.peers * (BOUNDS.memory + _WORK)
    if world.most_held > most:
        return [f"a peer held {world.most_held:,} bytes of others, at most {most:,}"]
    return []
