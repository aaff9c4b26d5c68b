"""One seed, one world: drawn, played, and held against the promises. What `troth chaos` runs thousands of."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from troth.attacks.wire.link import WIRE_BEHAVIOURS
from troth.crypto import Stream, stream
from troth.protocol.core.run import most_byzantine
from troth.simulation.chaos.checkers import CHECKERS, OF_SAFETY
from troth.simulation.chaos.checkers.progress import excused
from troth.simulation.chaos.faults import Cut, Network
from troth.simulation.chaos.world import Plan, World, play
from troth.simulation.lockstep.drop_outs import DropOut

ATTACKS = (
    "wrong-aggregate",
    "wrong-aggregate:border=true",
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

WIDE_ATTACKS = (
    *ATTACKS,
    "covered-once",
    "covered-once:scale=edge",
    "leave",
    "reroll",
    "pad-votes:ballots=500",
    "complain",
    "block-returns",
    "strategist",
)
LATER_BEHAVIOURS = frozenset(
    {"hoard-signatures", "flood"}
)  # drawn by `draw_wide` only: seeds stay the worlds they were


@dataclass(frozen=True)
class Verdict:
    """What a world showed; `broken` is empty where all promises were kept."""

    seed: int
    plan: str
    broken: list[str]
    counts: Counter[str] = field(default_factory=Counter)


class Dice:
    """What a seed decides."""

    def __init__(self, draws: Stream) -> None:
        self.stream = draws

    def pick(self, count: int) -> int:
        return int(self.stream.integers(count, 1)[0])

    def chance(self) -> float:
        return float(self.stream.uniform(1)[0])


def draw_plan(seed: int, *, least_peers: int = 4, most_peers: int = 16, steps: int = 20) -> Plan:
    dice = Dice(stream(seed, "chaos"))
    peers = least_peers + dice.pick(most_peers - least_peers + 1)
    together = not dice.pick(8)  # all that there may be, for a lie that needs the signatures of all liars
    byzantine = most_byzantine(peers, 1) if together else dice.pick(most_byzantine(peers, 1) + 1)
    order = dice.stream.permutation(peers).tolist()
    lying, honest = order[:byzantine], order[byzantine:]
    crashes, loss, cuts = _draw_failures(dice, honest, peers, steps)
    names = sorted(set(WIRE_BEHAVIOURS) - LATER_BEHAVIOURS)
    liars = {number: frozenset(names[k] for k in dice.stream.sample(len(names), dice.pick(5))) for number in lying}
    attacks = {number: ATTACKS[dice.pick(len(ATTACKS))] for number in lying if dice.pick(2)}
    if together:
        liars = {number: frozenset({"late-certificate"} if number == lying[0] else ()) for number in lying}
        attacks = {}
    if not dice.pick(3):  # whoever was gone is lied to by all, and robbed of its place
        liars = {number: behaviours | {"mislead", "false-knock"} for number, behaviours in liars.items()}
    forge_from = {number: dice.pick(steps) for number in lying if dice.pick(2)}
    intensity = {number: (dice.chance() ** 2, dice.pick(steps)) for number in lying}
    network = _draw_network(dice, peers, honest, loss, cuts)
    blackout = {} if crashes or loss or cuts else _draw_blackout(seed, honest, steps)
    confirmed = 30.0 + 90 * float(stream(seed, "people").uniform(1)[0])
    return Plan(seed, peers, steps, liars, forge_from, attacks, intensity, crashes, network, blackout, confirmed)


def _draw_blackout(seed: int, honest: list[int], steps: int) -> dict[int, DropOut]:
    """In every second world the power goes for everyone within one step: at a moment of it that is each one's own, or for all
    while they sign its record with the next Commit, so that some hold it certified and others do not."""
    draw, count = stream(seed, "blackout"), len(honest)
    if draw.integers(2, 1)[0]:
        return {}
    step, late = int(draw.integers(max(1, steps // 2), 1)[0]), bool(draw.integers(2, 1)[0])
    calls = [0] * count if late else draw.integers(9, count).tolist()
    downs, amid = (20 * draw.uniform(count)).tolist(), ((1 if late else 2) * draw.uniform(count)).tolist()
    return {honest[k]: DropOut(step + late, calls[k], downs[k], True, amid[k]) for k in range(count)}


def _draw_failures(
    dice: Dice, honest: list[int], peers: int, steps: int
) -> tuple[dict[int, DropOut], dict[int, float], list[Cut]]:
    """Whom power fails, whose packets get lost, who is cut off."""
    crashes: dict[int, DropOut] = {}
    loss: dict[int, float] = {}
    cuts: list[Cut] = []
    pick, chance, byzantine = dice.pick, dice.chance, peers - len(honest)

    def amid() -> float:
        return 2 * chance() if pick(2) else 0.0

    if pick(2):  # some go for good, as many as leave the honest in the majority of contributors
        spare = max(1, len(honest) - byzantine - 1)
        crashes = {number: DropOut(pick(steps), pick(9), amid=amid()) for number in honest[: pick(spare)]}
    elif pick(3):  # some fail for a while: with the liars fewer than half, so that nobody goes on without the rest
        for number in honest[: max(0, (peers - 1) // 2 - byzantine)]:
            match pick(4):
                case 0 | 1:
                    crashes[number] = DropOut(pick(steps), pick(9), chance() ** 2 * 100, bool(pick(2)), amid())
                case 2:
                    start, length = chance() * 8 * steps, 1 + chance() ** 2 * 80
                    isolated = frozenset({number, *(cuts[-1].isolated if cuts and pick(2) else ())})
                    cuts.append(Cut(isolated, start, start + length))
                case _:
                    loss[number] = 0.5 * chance() ** 2
    return crashes, loss, cuts


def _draw_network(dice: Dice, peers: int, honest: list[int], loss: dict[int, float], cuts: list[Cut]) -> Network:
    pick, chance = dice.pick, dice.chance
    share = (0.05 + 0.85 * chance()) * (0.5 if (narrow := not pick(3)) else 1.0)
    links = chance() if pick(2) else 0.0
    return Network(
        latency=share * (1 - links),
        links=share * links,
        doubled=0.2 * chance() if not pick(3) else 0.0,
        bytes_per_second=(2 + 4 * chance()) * 1e6 if narrow else None,
        loss=loss,
        cuts=tuple(cuts),
        clocks={number: (1000 * chance(), 1e-3 * (chance() - 0.5)) for number in range(peers)} if not pick(3) else {},
        slow={number: 0.9 * chance() for number in honest if not pick(4)} if not pick(3) else {},
    )


def judge(plan: Plan) -> Verdict:
    torch.set_num_threads(1)
    try:
        world = play(plan)
    except Exception as error:  # a peer that falls over is a broken promise too
        return Verdict(plan.seed, str(plan), [f"crash: {type(error).__name__}: {error}"])
    return Verdict(plan.seed, str(plan), broken_in(world), counts(world))


def broken_in(world: World) -> list[str]:
    """What was promised and not kept: everything, or safety alone where more are gone than anything else is promised for."""
    everything = world.plan.within or world.plan.fair
    promised = {name: check for name, check in CHECKERS.items() if everything or name in OF_SAFETY}
    return [f"{name}: {what}" for name, check in promised.items() for what in check(world)]


def counts(world: World) -> Counter[str]:
    """What was injected and what came of it: "no violation" means little without it."""
    plan, records = world.plan, world.records
    bans = [j for record in records for j in record.judgements if j.banned is not None]
    back = [cut for cut in plan.crashes.values() if cut.down is not None]
    return Counter(
        {
            "worlds": 1,
            "worlds within the full guarantee": int(plan.within),
            "worlds beyond the full guarantee": int(not plan.within),
            "worlds of which safety alone is promised": int(not plan.within and not plan.fair),
            "worlds excused from progress": int(excused(world)),
            "updates": sum(record.updated for record in records),
            "steps": len(records),
            "packets": world.packets,
            "packets lost": world.lost,
            "packets doubled": world.doubled,
            "crashes for good": len(plan.crashes) - len(back),
            "crashes and restarts with the journal": sum(cut.journal for cut in back),
            "crashes and restarts without the journal": sum(not cut.journal for cut in back),
            "blackouts": int(bool(plan.blackout)),
            "beginnings anew": records[-1].incarnation if records else 0,
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
            "feuds": sum(len(record.link_disputes) for record in records),
            "expulsions": sum(len(record.expelled) for record in records),
            "attempts beyond the first": sum(outcome.attempts - 1 for outcome in world.witness),
            **{f"lies: {name}": count for name, count in world.lies.items()},
        }
    )
