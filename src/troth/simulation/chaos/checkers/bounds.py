"""Messages are bounded: nobody can make the honest send without end."""

from troth.simulation.chaos.world import World

_WAITING = 8  # packets in a second, from everyone to everyone


def bounds(world: World) -> list[str]:
    peers, steps = len(world.numbers), max(1, len(world.records))
    attempts = sum(outcome.attempts for outcome in world.witness) or 1
    broken = []
    # Five announcements and a vote in an attempt; each sends values, views, certificates and chains of up to two values of
    # everyone to everyone.
    most = (6 * attempts + 6 * steps) * peers * peers * (6 + 2 * peers)
    if (
        world.plan.blackout
    ):  # who is in no step says so twice in a second, is answered, and asks: some for as long as it lasts
        most += int(_WAITING * world.seconds) * peers * peers
    if world.packets > most:
        broken.append(f"{world.packets} packets in {steps} steps with {attempts} attempts: at most {most}")
    return broken
