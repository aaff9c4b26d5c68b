"""Beyond the full guarantee: liars at the limit, and honest peers that crash besides. Safety alone is promised."""

from dataclasses import replace

from troth.crypto import stream
from troth.simulation.chaos.draws.classic import draw_plan
from troth.simulation.chaos.draws.dice import Dice
from troth.simulation.chaos.draws.wide import with_calls, with_crashes, with_spikes, with_training
from troth.simulation.chaos.plan import Plan
from troth.simulation.lockstep.drop_outs import DropOut


def draw_beyond(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    """Draw a world with as many liars as there may be, and honest peers that crash besides."""
    dice = Dice(stream(seed, "beyond"))
    plan = draw_plan(seed, least_peers=least_peers, most_peers=most_peers, steps=steps)
    plan = with_spikes(with_crashes(dice, with_training(dice, plan, large=False)))
    isolated = Dice(stream(seed, "one by one"))  # a stream of its own: other worlds stay the same
    return with_calls(plan if isolated.pick(3) else _one_by_one(isolated, plan))


def _one_by_one(dice: Dice, plan: Plan) -> Plan:
    """Honest peers go for good, in each step as many as leave a quorum, until liars are most of the members left.

    All at once would stop the run, and a run that stops shows nothing.
    """
    honest = [k for k in dice.stream.permutation(plan.peers).tolist() if k not in plan.lying]
    stay, crashes = 1 + dice.pick(2), dict[int, DropOut]()
    for step in range(dice.pick(3), plan.steps):
        members = len(honest) + len(plan.lying)
        spare = min(members - max(members // 2 + 1, plan.promised + 1), len(honest) - stay)
        if spare < 1:
            break
        for _ in range(1 + dice.pick(spare)):
            crashes[honest.pop()] = DropOut(step, dice.pick(9), amid=2 * dice.chance() if dice.pick(2) else 0.0)
    return replace(plan, crashes=crashes or plan.crashes)
