"""One seed, one world: drawn, played, and held against the promises. What `troth chaos` runs thousands of."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from troth.attacks.wire import CONDUCTS
from troth.crypto import stream
from troth.protocol.run import most_byzantine
from troth.simulation.checkers import CHECKERS
from troth.simulation.drop_outs import DropOut
from troth.simulation.faults import Network
from troth.simulation.world import Plan, World, play

ATTACKS = (
    "wrong-aggregate",
    "wrong-report",
    "false-accusation",
    "mass-accusation",
    "silent-validation",
    "lying-jury",
    "withheld-aggregate",
    "vanish:after=reveal",
    "grind",
    "covered-aggregate",
)


@dataclass(frozen=True)
class Verdict:
    """What a world showed; `broken` is empty where all promises were kept."""

    seed: int
    plan: str
    broken: list[str]
    counts: Counter[str] = field(default_factory=Counter)


def draw_plan(seed: int, *, least_peers: int = 4, most_peers: int = 12, steps: int = 20) -> Plan:
    draw = stream(seed, "chaos")

    def pick(count: int) -> int:
        return int(draw.integers(count, 1)[0])

    peers = least_peers + pick(most_peers - least_peers + 1)
    byzantine = pick(most_byzantine(peers, 1) + 1)
    order = draw.permutation(peers).tolist()
    names = sorted(CONDUCTS)
    liars = {number: frozenset(names[k] for k in draw.sample(len(names), pick(5))) for number in order[:byzantine]}
    forge_from = {number: pick(steps) for number in order[:byzantine] if pick(2)}
    attacks = {number: ATTACKS[pick(len(ATTACKS))] for number in order[:byzantine] if pick(2)}
    zeal = {number: (float(draw.uniform(1)[0]) ** 2, pick(steps)) for number in order[:byzantine]}
    honest = order[byzantine:]
    spare = max(1, len(honest) - byzantine - 1)  # so many may go and leave the honest in the majority of contributors
    crashes = {number: DropOut(pick(steps), pick(9)) for number in honest[: pick(spare)]} if pick(2) else {}
    network = Network(latency=0.05 + 0.9 * float(draw.uniform(1)[0]))
    return Plan(seed, peers, steps, liars, forge_from, attacks, zeal, crashes, network)


def judge(plan: Plan) -> Verdict:
    torch.set_num_threads(1)
    try:
        world = play(plan)
    except Exception as error:  # a peer that falls over is a broken promise too
        return Verdict(plan.seed, str(plan), [f"crash: {type(error).__name__}: {error}"])
    broken = [f"{name}: {what}" for name, check in CHECKERS.items() for what in check(world)]
    return Verdict(plan.seed, str(plan), broken, counts(world))


def counts(world: World) -> Counter[str]:
    """What was injected and what came of it: "no violation" means little without it."""
    bans = [j for record in world.records for j in record.judgements if j.banned is not None]
    return Counter(
        {
            "worlds": 1,
            "steps": len(world.records),
            "packets": world.packets,
            "crashes": len(world.plan.crashes),
            "wrong gradients": len(world.forged),
            "bans": len(bans),
            **{f"bans for {kind.name.lower()}": n for kind, n in Counter(j.kind for j in bans).items()},
            "absences": sum(len(record.absent) for record in world.records),
            "strikes": sum(len(record.struck) for record in world.records),
            "attempts beyond the first": sum(outcome.attempts - 1 for outcome in world.witness),
            **{f"lies: {name}": count for name, count in world.lies.items()},
        }
    )
