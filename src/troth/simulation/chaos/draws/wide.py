"""Wide worlds: classic ones with more in them: larger or longer, every lie, other models, and a promise with slack."""

from dataclasses import replace

from troth.crypto import stream
from troth.protocol.core.run import most_byzantine
from troth.simulation.chaos.draws.classic import AWAKE, CLASSIC_ATTACKS, LATER_BEHAVIOURS, draw_plan
from troth.simulation.chaos.draws.dice import Dice
from troth.simulation.chaos.plan import TASKS, Plan
from troth.simulation.lockstep.drop_outs import DropOut

WIDE_ATTACKS = (
    *CLASSIC_ATTACKS,
    "covered-once",
    "covered-once:scale=edge",
    "leave",
    "reroll",
    "pad-votes:ballots=500",
    "complain",
    "block-returns",
    "strategist",
)
_LARGE = (17, 40)  # peers, in one world of twelve
_FEW_STEPS = 3  # of these
_LONG = (65, 80)  # steps, in one world of twelve
_FEW_PEERS = 6  # of these
_QUIET = TASKS[4]  # nearly without noise, for a radius that is far below the gradients
_SMALL_TAU = 1e-5
_NIGHT = (35.0, 95.0)  # seconds


def draw_wide(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    """Draw a classic world, some larger or longer, with every lie there is, other models and radii, and slack in b."""
    dice = Dice(stream(seed, "wide"))
    size, large = dice.pick(12), False
    if size == 0:
        least_peers, most_peers, steps, large = *_LARGE, min(steps, _FEW_STEPS), True
    elif size == 1:
        least_peers, most_peers = min(least_peers, _FEW_PEERS), min(most_peers, _FEW_PEERS)
        steps = _LONG[0] + dice.pick(_LONG[1] - _LONG[0] + 1)
    plan = draw_plan(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    plan = with_training(dice, _with_lies(dice, _with_few_contents(_with_long_nights(plan))), large=large)
    plan = with_spikes(plan)
    most = most_byzantine(plan.peers, 1)
    if not dice.pick(10):
        return with_calls(with_crashes(dice, plan))
    if not dice.pick(8):
        return plan
    plan = replace(plan, byzantine=most)
    return _within(plan) if not plan.within and dice.pick(2) else plan


def with_spikes(plan: Plan) -> Plan:
    """In every third world with wrong gradients these are right, but for one number of any size (SPEC A7)."""
    dice = Dice(stream(plan.seed, "spikes"))  # a stream of its own: other worlds stay the same
    return plan if not plan.forge_from or dice.pick(3) else replace(plan, spikes=10.0 ** (6 + 32 * dice.chance()))


def with_calls(plan: Plan) -> Plan:
    """In every second world that may pause, a liar calls all to each next step at once (SPEC G3)."""
    dice = Dice(stream(plan.seed, "calls"))  # a stream of its own: other worlds stay the same
    if not plan.liars or not plan.crashes or dice.pick(2):
        return plan
    number = min(plan.liars)
    return replace(
        plan,
        liars={**plan.liars, number: plan.liars[number] | {AWAKE}},
        intensity={**plan.intensity, number: (1.0, plan.intensity[number][1])},
    )


def _with_long_nights(plan: Plan) -> Plan:
    """After every second blackout some stay without power for longer than the others wait by themselves (SPEC B5)."""
    dice = Dice(stream(plan.seed, "long nights"))  # a stream of its own: other worlds stay the same
    if not plan.blackout or dice.pick(2):
        return plan
    downs = {k: _NIGHT[0] + dice.chance() * (_NIGHT[1] - _NIGHT[0]) for k in plan.blackout if not dice.pick(3)}
    return replace(plan, blackout={k: replace(cut, down=downs.get(k, cut.down)) for k, cut in plan.blackout.items()})


def _with_few_contents(plan: Plan) -> Plan:
    """In every fourth world records name the content of the state only now and then, as for a large model (SPEC U5)."""
    dice = Dice(stream(plan.seed, "contents"))  # a stream of its own: other worlds stay the same
    return plan if dice.pick(4) else replace(plan, content_every=2 + dice.pick(5))


def _with_lies(dice: Dice, plan: Plan) -> Plan:
    """Give any attack to half of the liars, or one to all together; some also get the later behaviours on the wire."""
    later = sorted(LATER_BEHAVIOURS)
    liars = {
        number: behaviours | {later[dice.pick(len(later))]} if not dice.pick(6) else behaviours
        for number, behaviours in plan.liars.items()
    }
    attacks = dict(plan.attacks)
    if not dice.pick(3):  # a lie that needs all of them
        attacks = dict.fromkeys(plan.liars, WIDE_ATTACKS[dice.pick(len(WIDE_ATTACKS))])
    else:
        attacks |= {number: WIDE_ATTACKS[dice.pick(len(WIDE_ATTACKS))] for number in plan.liars if dice.pick(2)}
    return replace(
        plan,
        liars=liars,
        attacks=attacks,
        waits=bool(plan.crashes) and not dice.pick(3),
        liars_return=not plan.blackout and not dice.pick(4),
    )


def with_training(dice: Dice, plan: Plan, *, large: bool) -> Plan:
    """Draw the model and the clipping radius."""
    kind = dice.pick(8)
    if large:
        task, tau = TASKS[3 if kind == 0 else 1], plan.tau
    else:
        task, tau = {0: (TASKS[2], plan.tau), 1: (_QUIET, _SMALL_TAU), 2: (TASKS[0], 0.01)}.get(
            kind, (plan.task, plan.tau)
        )
    return replace(plan, task=task, tau=tau, tau_auto=0.25 if not dice.pick(5) else None)


def _within(plan: Plan) -> Plan:
    """Keep only so many failing peers, the first of them, that the plan is within the full guarantee."""
    failing = frozenset(sorted(plan.shaky - plan.blackout.keys())[: plan.promised - len(plan.lying)])
    cuts = tuple(replace(cut, isolated=cut.isolated & failing) for cut in plan.network.cuts if cut.isolated & failing)
    loss = {number: share for number, share in plan.network.loss.items() if number in failing}
    crashes = {number: cut for number, cut in plan.crashes.items() if number in failing | plan.lying}
    return replace(plan, crashes=crashes, blackout={}, network=replace(plan.network, cuts=cuts, loss=loss))


def with_crashes(dice: Dice, plan: Plan) -> Plan:
    """Raise the liars to the limit; then honest peers lose power, for good or for a while; at least one stays."""
    most, order = most_byzantine(plan.peers, 1), dice.stream.permutation(plan.peers).tolist()
    new = [number for number in order if number not in plan.lying][: most - len(plan.lying)]
    lying = {*plan.lying, *new}
    honest = [number for number in order if number not in lying]
    attack = WIDE_ATTACKS[dice.pick(len(WIDE_ATTACKS))]
    together = dict.fromkeys(sorted(lying), attack) if dice.pick(2) else dict(plan.attacks)
    return replace(
        plan,
        liars={**plan.liars, **dict.fromkeys(new, frozenset())},
        intensity={**plan.intensity, **{number: (dice.chance() ** 2, dice.pick(plan.steps)) for number in new}},
        forge_from={number: start for number, start in plan.forge_from.items() if number in lying},
        attacks=together,
        crashes={number: _crash(dice, plan.steps) for number in honest[: 1 + dice.pick(max(1, len(honest) - 1))]},
        blackout={},
        network=replace(plan.network, cuts=(), loss={}),
        byzantine=most,
        waits=bool(dice.pick(2)),
    )


def _crash(dice: Dice, steps: int) -> DropOut:
    down = None if dice.pick(2) else 60 * dice.chance()
    return DropOut(dice.pick(steps), dice.pick(9), down, bool(dice.pick(4)), 2 * dice.chance() if dice.pick(2) else 0.0)
