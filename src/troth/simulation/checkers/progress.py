"""A step ends if enough honest peers stay: nobody is left out or stalls without need."""

from troth.protocol.state import LeftOutError, StalledError
from troth.simulation.world import World


def progress(world: World) -> list[str]:
    broken = []
    for number, why in sorted(world.stopped.items()):
        if number in world.steady and isinstance(why, LeftOutError):
            broken.append(f"honest peer {number} was left out: {why}")
        elif number in world.steady and len(world.outcomes[number]) < len(world.records):
            broken.append(f"honest peer {number} stopped, and others went on: {why}")
    if len(world.records) < world.plan.steps and not world.majority_lost:
        stalled = sorted({str(why) for why in world.stopped.values() if isinstance(why, StalledError)})
        broken.append(f"only {len(world.records)} of {world.plan.steps} steps: {stalled}")
    return broken
