"""Runs in which somebody disturbs one step: by what it says, or by falling silent."""

import dataclasses
from collections.abc import Callable
from functools import cache

from tests.protocol.altered_runs import CALM
from tests.protocol.channel_wrappers import AlteringChannel
from tests.protocol.small_runs import SMALL, run_on
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import Channel
from troth.protocol.core.roles import draw_roles
from troth.protocol.wire.messages import Message
from troth.workshop.simulation import ProtocolSimulation

DISTURBED_STEP = 3
LYING = dataclasses.replace(SMALL, steps=6, evaluate_every=6)


def altering(other: Callable[[Message], Message]) -> Callable[[Channel], Channel]:
    """A wrapper of channels that says something else, in one step."""

    def change(slot: Slot, message: Message) -> Message:
        return other(message) if slot.step == DISTURBED_STEP else message

    return lambda inner: AlteringChannel(inner, change)


def contributors_of(simulation: ProtocolSimulation) -> list[PeerId]:
    """Contributors to the disturbed step, in the order of the parts they own; known once the step before is over."""
    state = simulation.states[simulation.honest[0]]
    assert state.step == DISTURBED_STEP
    return list(draw_roles(simulation.run, state.roster, state.randomness, state.pending_audits).owners)


@cache
def _calm_contributors() -> list[PeerId]:
    return contributors_of(run_on(ProtocolSimulation(CALM), lambda s: s.steps_done == DISTURBED_STEP))


def calm_run() -> tuple[ProtocolSimulation, list[PeerId]]:
    """A run that nobody disturbs yet, and the contributors to the step in which somebody will."""
    return ProtocolSimulation(CALM), _calm_contributors()
