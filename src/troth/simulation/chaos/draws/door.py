"""Worlds with an open door: strangers come, go and come again, some to cheat, while liars inside mislead them and members crash,
change their keys or lose power all at once."""

from dataclasses import replace

from troth.attacks.wire.door import DOOR_LIES
from troth.crypto import stream
from troth.protocol.core.run import most_byzantine
from troth.simulation.chaos.draws.classic import draw_plan
from troth.simulation.chaos.draws.dice import Dice
from troth.simulation.chaos.draws.wide import draw_wide
from troth.simulation.chaos.plan import BEHAVIOURS, HONEST, Leave, Plan

_STEPS = 32  # at least: a stranger has to follow, wait for a draw, and work
_PROBATION = (4, 12)  # steps
_ARRIVAL = 12.0  # seconds
_MOST_STRANGERS = 4
_STAY = 90.0  # seconds until a stranger leaves, at most
_AWAY = 40.0  # seconds, at most
_REKEY_EVERY = 8  # updates, at most


def draw_door(seed: int, *, least_peers: int = 4, most_peers: int = 8, steps: int = _STEPS) -> Plan:
    """Draw a classic world, every third a wide one, and up to four strangers, of whom every second is honest."""
    dice, steps = Dice(stream(seed, "door")), max(steps, _STEPS)
    draw = draw_plan if dice.pick(3) else draw_wide
    plan = draw(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    if plan.steps < steps:  # the large ones are over before anybody is in
        plan = draw_plan(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    if dice.pick(2):  # a promise with slack, so that those who turn or leave do not go beyond it
        plan = replace(plan, byzantine=most_byzantine(plan.peers, 1))
    plan = _with_lies_at_the_door(dice, _with_key_changes(dice, plan))
    probation = _PROBATION[0] + dice.pick(_PROBATION[1] - _PROBATION[0] + 1)
    strangers = {
        plan.peers + number: (
            round(dice.chance() * _ARRIVAL, 3),
            HONEST if dice.pick(2) else BEHAVIOURS[1 + dice.pick(len(BEHAVIOURS) - 1)],
        )
        for number in range(1 + dice.pick(_MOST_STRANGERS))
    }
    leaves = {number: _leave(dice) for number, (_, how) in strangers.items() if how != "flood" and not dice.pick(4)}
    rekeying = Dice(stream(seed, "record keys"))
    rekey_every = 1 + rekeying.pick(_REKEY_EVERY) if rekeying.pick(2) else 0
    plan = replace(plan, probation=probation, strangers=strangers, leaves=leaves, rekey_every=rekey_every)
    plan = replace(plan, spikes=0.0)  # strangers that lie turn their gradients around
    if not Dice(stream(seed, "calm")).pick(3):
        return _within(_calm(plan))
    return _within(plan) if dice.pick(2) else plan


def _calm(plan: Plan) -> Plan:
    """Nothing fails among the founders, and one may still lie: it is the strangers' turn to go wrong, within the guarantee."""
    most = most_byzantine(plan.peers, 1)
    stay = sorted(plan.lying)[: max(0, most - 1)]
    return replace(
        plan,
        liars={number: how for number, how in plan.liars.items() if number in stay},
        forge_from={number: start for number, start in plan.forge_from.items() if number in stay},
        attacks={number: how for number, how in plan.attacks.items() if number in stay},
        intensity={number: how for number, how in plan.intensity.items() if number in stay},
        crashes={},
        blackout={},
        network=replace(plan.network, cuts=(), loss={}),
        byzantine=most,
    )


def _with_key_changes(dice: Dice, plan: Plan) -> Plan:
    """Half of those who come back have lost what they signed, and come under successor keys (SPEC B1, B8)."""
    crashes = {number: replace(cut, journal=cut.journal and bool(dice.pick(2))) for number, cut in plan.crashes.items()}
    return replace(plan, crashes=crashes)


def _with_lies_at_the_door(dice: Dice, plan: Plan) -> Plan:
    """In three of four worlds with liars they lie at the door: each in one or two ways of its own, or all alike."""
    if not plan.liars or not dice.pick(4):
        return plan
    lies, alike, liars = sorted(DOOR_LIES), bool(dice.pick(2)), dict[int, frozenset[str]]()
    chosen = dice.stream.sample(len(lies), 1 + dice.pick(2))
    for number, behaviours in sorted(plan.liars.items()):
        chosen = chosen if alike else dice.stream.sample(len(lies), 1 + dice.pick(2))
        liars[number] = behaviours | {lies[k] for k in chosen}
    return replace(plan, liars=liars)


def _leave(dice: Dice) -> Leave:
    """At any time, or soon after it became a member; for a while, or for good; under its key or another."""
    inside = bool(dice.pick(2))
    at = dice.chance() * (20.0 if inside else _STAY)
    down = round(dice.chance() * _AWAY, 3) if dice.pick(3) else None
    return Leave(round(at, 3), down, bool(dice.pick(2)), inside)


def _within(plan: Plan) -> Plan:
    """As many of those who turn or leave as the promise has room for, the first of them."""
    room = max(0, plan.promised - len(plan.lying | plan.shaky))
    faulty = set(sorted(plan.turncoats | plan.leaves.keys())[:room])
    strangers = {
        number: (when, how if number in faulty or how != "turns" else HONEST)
        for number, (when, how) in plan.strangers.items()
    }
    leaves = {number: leave for number, leave in plan.leaves.items() if number in faulty}
    return replace(plan, strangers=strangers, leaves=leaves)
