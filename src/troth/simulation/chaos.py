"""One seed, one world: drawn, played, and held against the promises. What `troth chaos` runs thousands of."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from troth.attacks.wire import CONDUCTS
from troth.crypto import stream
from troth.protocol.run import most_byzantine
from troth.simulation.checkers import CHECKERS
from troth.simulation.drop_outs import DropOut
from troth.simulation.faults import Cut, Network
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
    "adapt",
)


@dataclass(frozen=True)
class Verdict:
    """What a world showed; `broken` is empty where all promises were kept."""

    seed: int
    plan: str
    broken: list[str]
    counts: Counter[str] = field(default_factory=Counter)


def draw_plan(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    draw = stream(seed, "chaos")

    def pick(count: int) -> int:
        return int(draw.integers(count, 1)[0])

    def chance() -> float:
        return float(draw.uniform(1)[0])

    peers = least_peers + pick(most_peers - least_peers + 1)
    byzantine = pick(most_byzantine(peers, 1) + 1)
    order = draw.permutation(peers).tolist()
    names = sorted(CONDUCTS)
    liars = {number: frozenset(names[k] for k in draw.sample(len(names), pick(5))) for number in order[:byzantine]}
    forge_from = {number: pick(steps) for number in order[:byzantine] if pick(2)}
    attacks = {number: ATTACKS[pick(len(ATTACKS))] for number in order[:byzantine] if pick(2)}
    zeal = {number: (chance() ** 2, pick(steps)) for number in order[:byzantine]}
    honest = order[byzantine:]
    crashes: dict[int, DropOut] = {}
    loss: dict[int, float] = {}
    cuts: list[Cut] = []
    if pick(2):  # some go for good, as many as leave the honest in the majority of contributors
        spare = max(1, len(honest) - byzantine - 1)
        crashes = {number: DropOut(pick(steps), pick(9)) for number in honest[: pick(spare)]}
    elif pick(
        3
    ):  # some fail for a while: with the liars fewer than half, so that nobody else can go on without the rest
        for number in honest[: max(0, (peers - 1) // 2 - byzantine)]:
            match pick(4):
                case 0 | 1:
                    crashes[number] = DropOut(pick(steps), pick(9), chance() ** 2 * 100, bool(pick(2)))
                case 2:
                    start, length = chance() * 8 * steps, 1 + chance() ** 2 * 80
                    cuts.append(
                        Cut(frozenset({number, *(cuts[-1].apart if cuts and pick(2) else ())}), start, start + length)
                    )
                case _:
                    loss[number] = 0.5 * chance() ** 2
    share = (0.05 + 0.85 * chance()) * (0.5 if (narrow := not pick(3)) else 1.0)
    links = chance() if pick(2) else 0.0
    network = Network(
        latency=share * (1 - links),
        links=share * links,
        doubled=0.2 * chance() if not pick(3) else 0.0,
        bytes_per_second=(2 + 4 * chance()) * 1e6 if narrow else None,
        loss=loss,
        cuts=tuple(cuts),
        clocks={number: (1000 * chance(), 1e-3 * (chance() - 0.5)) for number in range(peers)} if not pick(3) else {},
        slow={number: 0.9 * chance() for number in honest if not pick(4)} if not pick(3) else {},
    )
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
    plan, records = world.plan, world.records
    bans = [j for record in records for j in record.judgements if j.banned is not None]
    back = [cut for cut in plan.crashes.values() if cut.down is not None]
    return Counter(
        {
            "worlds": 1,
            "steps": len(records),
            "packets": world.packets,
            "packets lost": world.lost,
            "packets doubled": world.doubled,
            "crashes for good": len(plan.crashes) - len(back),
            "crashes and restarts with the journal": sum(cut.journal for cut in back),
            "crashes and restarts without the journal": sum(not cut.journal for cut in back),
            "cuts that heal": len(plan.network.cuts),
            "peers whose packets get lost": len(plan.network.loss),
            "worlds with skewed clocks": int(bool(plan.network.clocks)),
            "slow peers": len(plan.network.slow),
            "wrong gradients": len(world.forged),
            "bans": len(bans),
            **{f"bans for {kind.name.lower()}": n for kind, n in Counter(j.kind for j in bans).items()},
            "absences": sum(len(record.absent) for record in records),
            "returns": sum(len(record.returned) for record in records),
            "strikes for coins": sum(len(record.struck) for record in records),
            "strikes for slow paths": sum(len(record.slowed) for record in records),
            "feuds": sum(len(record.feuds) for record in records),
            "expulsions": sum(len(record.expelled) for record in records),
            "attempts beyond the first": sum(outcome.attempts - 1 for outcome in world.witness),
            **{f"lies: {name}": count for name, count in world.lies.items()},
        }
    )
