"""Progress: steps end in time and move the model while enough honest peers stay; steady ones keep their places, and those that
were gone come back to theirs."""

from collections import Counter
from collections.abc import Iterator, Set
from itertools import pairwise

from troth.crypto import PeerId
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roster import Roster, moves_with
from troth.protocol.core.run import LeftOutError, StalledError, effective_validators
from troth.protocol.wire.messages import Phase
from troth.protocol.wire.phases import PHASES
from troth.workshop.chaos.world import BOUNDS, World


def progress(world: World) -> list[str]:
    """No steady peer is left out or stalls without need.

    Within the full guarantee every step moves the model; beyond it the run may pause where a quorum is gone, and rest where too
    few can come back.
    """
    broken = []
    for number, why in sorted(world.stopped.items()):
        if number in world.steady and isinstance(why, LeftOutError) and not _may_name(world):
            broken.append(f"honest peer {number} was left out: {why}")
        elif number in world.steady and len(world.outcomes[number]) < len(world.records):
            broken.append(f"honest peer {number} stopped, and others went on: {why}")
    missing = "" if excused(world) else _missing(world)
    return [*broken, missing] if missing else broken


def excused(world: World) -> bool:
    """Whether the run may have stopped: more peers are gone than it promised to withstand."""
    stopped = world.majority_lost or world.rests or _done(world) or _may_name(world)
    return not world.plan.within and bool(_missing(world)) and stopped


def _may_name(world: World) -> bool:
    """Whether liars, and peers that the network fails, may be half of the owners: if they lack an honest contributor's part, or
    say so, it is out (SPEC N5)."""
    plan = world.plan
    owners = plan.peers - effective_validators(plan.peers, world.run.parameters.validators)
    return not plan.within and 2 * len(plan.lying | plan.network.unreached) >= owners


def pauses(world: World) -> list[str]:
    """Steps of a pause lie farther and farther apart, however often a liar calls (SPEC G3): from the third step without an update
    on, if those who were left could make none."""
    broken, before, still, idle, most = [], Roster.founding(world.run), 0, 0, 0
    for outcome in world.witness:
        record, count = outcome.record, len(before.members)
        ended, least = world.step_ends.get(record.step - 1), min(BOUNDS.delta * 2.0**idle, 3600.0)
        rested = still >= 2 and not moves_with(before, count, world.run.parameters.validators)
        if rested and ended is not None and not record.began:
            gap = world.step_ends[record.step] - ended
            if gap < 0.9 * least - 2 * BOUNDS.delta:
                broken.append(f"step {record.step}: {gap:.1f} s after the last one of a pause, not {least:.1f}")
        before, members = outcome.state.roster, len(outcome.state.roster.members)
        still, idle = (0, 0) if record.updated else (still + 1, 0 if members > most else idle + 1)
        most = 0 if record.updated else max(most, members)
    return broken


def _done(world: World) -> bool:
    return len(world.records) == world.plan.steps


def _missing(world: World) -> str:
    updates = sum(record.updated for record in world.records)
    stalled = sorted({str(why) for why in world.stopped.values() if isinstance(why, StalledError)})
    if not _done(world):
        return f"only {len(world.records)} of {world.plan.steps} steps: {stalled}"
    return f"only {updates} of {world.plan.steps} steps moved the model" if updates < world.plan.steps else ""


def standing(world: World) -> list[str]:
    """Honest peers that neither network nor power fails are never absent, struck or expelled.

    Within the full guarantee: where more fail than there may be liars, broken links count against others too (SPEC F3).
    """
    return list(held_against(world, world.steady)) if world.plan.within else []


def held_against(world: World, peers: Set[int]) -> Iterator[str]:
    for record in world.records:
        held = {"absent": record.absent, "struck": (*record.struck, *record.slowed), "expelled": record.expelled}
        for what, whom in held.items():
            for number in sorted(peers & {world.numbers.get(PeerId(peer)) for peer in whom}):
                yield f"step {record.step}: {number} is honest, and {what}"


# Timeouts: all agree on them, and nobody makes the others wait without a consequence.


def timeouts(world: World) -> list[str]:
    """All wait equally long (SPEC Q8), and each fallback costs a place, a strike, or a new link dispute.

    A step was decided by certificates alone if neither its record nor the next, which hears of its end, blames anybody.
    """
    pairs = Counter(pair for record in world.records for pair in record.link_disputes)
    broken = [
        f"{world.name(one)} and {world.name(other)} did not reach each other {count} times"
        for (one, other), count in sorted(pairs.items())
        if count > 1
    ]
    broken += [f"several timeouts in step {step}: {seen}" for step, seen in world.timeouts.items() if len(seen) > 1]
    for before, outcome, after in zip(world.witness, world.witness[1:], world.witness[2:], strict=False):
        step = outcome.record.step
        took = world.step_ends[step] - world.step_ends[step - 1]
        relayed = bool(before.state.roster.disputed_links())
        if (
            took > max(_longest(held, relayed) for held in world.timeouts[step])
            and outcome.attempts == 1
            and outcome.record.incarnation == before.record.incarnation  # else the power was gone
            and before.state.roster.still < 2  # else members may have rested before it (G3)
            and not _blames(outcome.record)
            and not _blames(after.record)
        ):
            broken.append(f"step {step} took {took:.0f} s, and nothing is held against anybody")
    return broken


def _blames(record: StepRecord) -> bool:
    held = (record.absent, record.struck, record.slowed, record.link_disputes, record.expelled, record.judgements)
    return any(held)


def _longest(timeouts: Timeouts, relayed: bool) -> float:
    """Longest step without a trial, with every value and every view just in time (SPEC Q1, Q2, F2)."""
    phases = [row.allowance for phase, row in PHASES.items() if phase not in (Phase.VOTE, Phase.CLOSE)]
    allowed = sum(one.deltas * timeouts.delta + one.exchanges * timeouts.exchange for one in phases)
    computed = sum(one.gradients + one.audits for one in phases) * timeouts.compute
    return allowed + computed + len(phases) * timeouts.delta * (6 if relayed else 4) + timeouts.delta


# Returns: peers that were gone come back, see what happened meanwhile, and take nobody else's place.

_STEPS = 9  # that coming back may take: two to observe, and some more if it is disturbed
_CAUGHT_UP = 4  # steps that a peer which missed more catches up with in one, with a few round trips for each


def rejoins(world: World) -> list[str]:
    """A member that comes back is the one that was gone (SPEC B3).

    Honest peers come back, and liars after a blackout or where the plan says so.
    """
    broken = []
    expected = {*world.plan.shaky, *world.plan.strangers}
    expected |= world.plan.lying if world.plan.blackout or world.plan.liars_return else frozenset()
    for record in world.records:
        for rejoin in record.returned:
            gone, back = world.numbers.get(PeerId(rejoin.member)), world.numbers.get(PeerId(rejoin.key))
            if back != gone or gone not in expected:
                broken.append(
                    f"step {record.step}: somebody else came back in the place of {world.name(rejoin.member)}"
                )
    return broken


def follows(world: World) -> list[str]:
    """A peer that observes, to come back, misses no step: nobody misleads it, and it need not begin again.

    From the first step on that it saw to its end, absent and well. Not for peers whose packets go on getting lost.
    """
    broken, absent = [], _absent_since(world)
    for number in sorted(world.plan.shaky & absent.keys() - world.plan.network.loss.keys()):
        well = _well_from(world, number)
        observed = {step for step, outcome in world.outcomes[number].items() if outcome.observed}
        ends = [step for step in sorted(observed) if step > absent[number]]
        seen = [step for step in ends if well is not None and world.step_ends[step] > well]
        for one, other in pairwise(seen):
            was_member = any(step in world.outcomes[number] for step in range(one + 1, other))  # and was left out again
            if other != one + 1 and not was_member:
                broken.append(f"{number} observed step {one}, and missed everything until step {other}")
    return broken


def comeback(world: World) -> list[str]:
    """A peer that was gone is a member again, some steps after its power is back or the network has healed.

    Not for peers whose packets go on getting lost, nor for those banned or expelled, whose way back is the newcomers' door.
    """
    if not world.records:
        return []
    roster: Roster = world.witness[-1].state.roster
    ever_expelled = {
        world.numbers.get(PeerId(p)) for record in world.records for p in (*record.banned, *record.expelled)
    }
    members = {world.numbers.get(peer) for peer in roster.members}
    broken, most, absent = [], BOUNDS.slowest.until_left(len(world.run.founders)), _absent_since(world)
    for number in sorted(world.plan.shaky - world.plan.network.loss.keys() - members - ever_expelled):
        well, noticed = _well_from(world, number), world.left_step.get(number)
        if well is None:
            continue
        if noticed is None:
            if world.time.now > well + most:
                broken.append(f"{number} is well since {well:.0f} s, and has not noticed that the others went on")
            continue
        missed = sum(end <= noticed and step > absent.get(number, step) for step, end in world.step_ends.items())
        steps_since = sum(end > max(well, noticed) for end in world.step_ends.values())
        if steps_since >= _STEPS + missed // _CAUGHT_UP:
            broken.append(f"{number} was gone, is well since {well:.0f} s and {steps_since} steps, and is no member")
    return broken


def _absent_since(world: World) -> dict[int | None, int]:
    """The steps after which peers were first without their place."""
    return {world.numbers.get(PeerId(p)): record.step for record in reversed(world.records) for p in record.absent}


def _well_from(world: World, number: int) -> float | None:
    """When nothing was in its way any more; None if that never came."""
    cut = world.plan.crashes.get(number, world.plan.blackout.get(number))
    if cut is not None and (cut.down is None or number not in world.power_back):
        return None
    heals = max((cut.end for cut in world.plan.network.cuts if number in cut.isolated), default=0.0)
    return max(heals, world.power_back.get(number, 0.0))
