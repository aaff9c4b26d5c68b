"""Play a plan: real protocol code in virtual time, on a network that hurts, with liars on the wire."""

from collections.abc import Coroutine
from typing import Any

from troth.crypto import PeerId
from troth.simulation.chaos.honest import HonestPeer
from troth.simulation.chaos.liar import Liar
from troth.simulation.chaos.plan import Plan
from troth.simulation.chaos.stage import Stage, Wrap
from troth.simulation.chaos.strangers.stranger import run_stranger
from troth.simulation.chaos.virtual_time import Watch
from troth.simulation.chaos.world import World

_MOST_EVENTS = 3_000_000


def play(plan: Plan, watch: Watch | None = None, wrap: Wrap | None = None) -> World:
    """Run a plan to its end; `wrap` may put something around every peer's channel, to listen."""
    return play_on(Stage(plan, watch, wrap))


def play_on(stage: Stage) -> World:
    """Run what is on a stage to its end."""
    plan, world = stage.plan, stage.world
    peers: dict[PeerId, Coroutine[Any, Any, None]] = {}
    for number, identity in enumerate(stage.identities):
        if number in plan.strangers:
            world.outcomes[number] = {}
            peers[identity.peer] = run_stranger(stage, number)
        elif number in plan.lying:
            peers[identity.peer] = run_liar(stage, number)
        else:
            world.outcomes[number] = {}
            peers[identity.peer] = run_honest(stage, number)
    survivors = [identity.peer for number, identity in enumerate(stage.identities) if number in world.survivors]
    stage.time.run(peers, most_events=_MOST_EVENTS, until=survivors)
    stage.recorder.finish()
    return world


async def run_honest(stage: Stage, number: int) -> None:
    await HonestPeer(stage, number).run()


async def run_liar(stage: Stage, number: int) -> None:
    await Liar(stage, number).run()
