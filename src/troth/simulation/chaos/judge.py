"""Judge a plan: play it, and hold the world against the promises."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from troth.simulation.chaos.checkers import CHECKERS, OF_SAFETY
from troth.simulation.chaos.checkers.progress import excused
from troth.simulation.chaos.plan import Plan
from troth.simulation.chaos.play import play
from troth.simulation.chaos.world import World


@dataclass(frozen=True)
class Verdict:
    """Result of a world; `broken` is empty where all promises were kept."""

    seed: int
    plan: str
    broken: list[str]
    counts: Counter[str] = field(default_factory=Counter)


def judge(plan: Plan) -> Verdict:
    """Judge a plan; a peer that raises is a broken promise too, and so is a checker."""
    torch.set_num_threads(1)
    try:
        world = play(plan)
        return Verdict(plan.seed, str(plan), broken_in(world), counts(world))
    except Exception as error:
        return Verdict(plan.seed, str(plan), [f"crash: {type(error).__name__}: {error}"])


def broken_in(world: World) -> list[str]:
    """Broken promises; safety alone is promised where too many peers fail for anything else."""
    everything = world.plan.within or world.plan.fair
    promised = {name: check for name, check in CHECKERS.items() if everything or name in OF_SAFETY}
    return [f"{name}: {what}" for name, check in promised.items() for what in check(world)]


def counts(world: World) -> Counter[str]:
    """Counts of what was injected and of what came of it: "no violation" means little without them."""
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
            "packets duplicated": world.duplicated,
            "crashes for good": len(plan.crashes) - len(back),
            "crashes and restarts with the journal": sum(cut.journal for cut in back),
            "crashes and restarts without the journal": sum(not cut.journal for cut in back),
            "blackouts": int(bool(plan.blackout)),
            "restarts": records[-1].incarnation if records else 0,
            "cuts that heal": len(plan.network.cuts),
            "peers whose packets get lost": len(plan.network.loss),
            "worlds with skewed clocks": int(bool(plan.network.clocks)),
            "slow peers": len(plan.network.slow),
            "wrong gradients": len(world.forged),
            "bans": len(bans),
            **{f"bans for {kind.name.lower()}": n for kind, n in Counter(j.kind for j in bans).items()},
            "absences": sum(len(record.absent) for record in records),
            "returns": sum(len(record.returned) for record in records),
            "strangers": len(plan.strangers),
            "gradients on probation": sum(len(record.probed) for record in records),
            "admissions": sum(len(record.admitted) for record in records),
            "strikes for coins": sum(len(record.struck) for record in records),
            "strikes for slow paths": sum(len(record.slowed) for record in records),
            "link disputes": sum(len(record.link_disputes) for record in records),
            "expulsions": sum(len(record.expelled) for record in records),
            "attempts beyond the first": sum(outcome.attempts - 1 for outcome in world.witness),
            **{f"lies: {name}": count for name, count in world.lies.items()},
        }
    )
