"""Worlds with an open door: classic ones to which strangers come, some to cheat, while liars inside do what they like."""

from dataclasses import replace

from troth.crypto import stream
from troth.simulation.chaos.draws.classic import draw_plan
from troth.simulation.chaos.draws.dice import Dice
from troth.simulation.chaos.draws.wide import draw_wide
from troth.simulation.chaos.plan import BEHAVIOURS, HONEST, Plan

_STEPS = 32  # at least: a stranger has to follow, wait for a draw, and work
_PROBATION = (6, 12)  # steps
_ARRIVAL = 12.0  # seconds
_MOST_STRANGERS = 3


def draw_door(seed: int, *, least_peers: int = 4, most_peers: int = 8, steps: int = _STEPS) -> Plan:
    """Draw a classic world, every third a wide one, and up to three strangers, of whom every second is honest."""
    dice = Dice(stream(seed, "door"))
    draw = draw_plan if dice.pick(3) else draw_wide
    plan = draw(seed, least_peers=least_peers, most_peers=most_peers, steps=max(steps, _STEPS))
    count = 1 + dice.pick(_MOST_STRANGERS)
    strangers = {
        plan.peers + number: (
            round(dice.chance() * _ARRIVAL, 3),
            HONEST if dice.pick(2) else BEHAVIOURS[1 + dice.pick(len(BEHAVIOURS) - 1)],
        )
        for number in range(count)
    }
    probation = _PROBATION[0] + dice.pick(_PROBATION[1] - _PROBATION[0] + 1)
    return replace(plan, probation=probation, strangers=strangers)
