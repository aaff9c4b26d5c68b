"""Judge a plan: play it, and hold the world against the promises."""

from collections import Counter
from collections.abc import Coroutine, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from troth.crypto import PeerId
from troth.processes import Died, work_through
from troth.workshop.chaos.check_progress import excused
from troth.workshop.chaos.checkers import CHECKERS, OF_SAFETY
from troth.workshop.chaos.peers import HonestPeer, Liar
from troth.workshop.chaos.plan import Plan
from troth.workshop.chaos.strangers import run_stranger
from troth.workshop.chaos.virtual_time import Watch
from troth.workshop.chaos.world import Stage, World, Wrap

_MOST_EVENTS = 3_000_000


@dataclass(frozen=True)
class WorldVerdict:
    """Result of a world; `broken` is empty where all promises were kept."""

    seed: int
    plan: str
    broken: list[str]
    counts: Counter[str] = field(default_factory=Counter)


def judge(plan: Plan) -> WorldVerdict:
    """Judge a plan; a peer that raises is a broken promise too, and so is a checker."""
    torch.set_num_threads(1)
    try:
        world = play(plan)
        return WorldVerdict(plan.seed, str(plan), broken_in(world), counts(world))
    except Exception as error:
        return WorldVerdict(plan.seed, str(plan), [f"crash: {type(error).__name__}: {error}"])


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
            "packets": world.time.packets,
            "packets lost": world.time.lost,
            "packets duplicated": world.time.duplicated,
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
            "strikes for fallbacks": sum(len(record.slowed) for record in records),
            "link disputes": sum(len(record.link_disputes) for record in records),
            "expulsions": sum(len(record.expelled) for record in records),
            "attempts beyond the first": sum(outcome.attempts - 1 for outcome in world.witness),
            **{f"lies: {name}": count for name, count in world.lies.items()},
        }
    )


# Verdicts on many worlds, each played in one of several processes


def judge_all(plans: Iterable[Plan], processes: int, until: float | None = None) -> Generator[WorldVerdict]:
    """Verdicts as they come, until all are there or `until` by `time.monotonic`. Close the generator to stop earlier."""
    done = work_through(judge, plans, processes, until)
    try:
        for plan, found in done:
            yield WorldVerdict(plan.seed, str(plan), [f"crash: {found}"]) if isinstance(found, Died) else found
    finally:
        done.close()


# Playing a plan: real protocol code in virtual time, on a network that hurts, with liars on the wire


def play(plan: Plan, watch: Watch | None = None, wrap: Wrap | None = None) -> World:
    """Run a plan to its end; `wrap` may put something around every peer's channel, to listen."""
    return play_on(Stage(plan, watch, wrap))


def play_on(stage: Stage) -> World:
    """Run what is on a stage to its end."""
    plan, world = stage.plan, stage.world
    peers: dict[PeerId, Coroutine[Any, Any, None]] = {}
    for number, identity in enumerate(stage.identities):
        run = run_stranger if number in plan.strangers else run_liar if number in plan.lying else run_honest
        if number not in plan.lying:
            world.outcomes[number] = {}
        peers[identity.peer] = run(stage, number)
    survivors = [identity.peer for number, identity in enumerate(stage.identities) if number in world.survivors]
    stage.time.run(peers, most_events=_MOST_EVENTS, until=survivors)
    world.finish()
    return world


async def run_honest(stage: Stage, number: int) -> None:
    await HonestPeer(stage, number).run()


async def run_liar(stage: Stage, number: int) -> None:
    await Liar(stage, number).run()
