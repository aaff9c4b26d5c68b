"""Progress: steps end and move the model while enough honest peers stay, and steady ones keep their places."""

from troth.crypto import PeerId
from troth.protocol.core.errors import LeftOutError, StalledError
from troth.protocol.core.roster import Roster, moves_with
from troth.simulation.chaos.world import BOUNDS, World


def progress(world: World) -> list[str]:
    """No steady peer is left out or stalls without need.

    Within the full guarantee every step moves the model; beyond it the run may pause where a quorum is gone, and rest where too
    few can come back.
    """
    broken = []
    for number, why in sorted(world.stopped.items()):
        if number in world.steady and isinstance(why, LeftOutError):
            broken.append(f"honest peer {number} was left out: {why}")
        elif number in world.steady and len(world.outcomes[number]) < len(world.records):
            broken.append(f"honest peer {number} stopped, and others went on: {why}")
    missing = "" if excused(world) else _missing(world)
    return [*broken, missing] if missing else broken


def excused(world: World) -> bool:
    """Whether the run may have stopped: more peers are gone than it promised to withstand."""
    stopped = world.majority_lost or world.rests or _done(world)
    return not world.plan.within and bool(_missing(world)) and stopped


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
    if not world.plan.within:
        return []
    broken = []
    for record in world.records:
        held = {"absent": record.absent, "struck": (*record.struck, *record.slowed), "expelled": record.expelled}
        for what, peers in held.items():
            for number in sorted(world.steady & {world.numbers.get(PeerId(peer)) for peer in peers}):
                broken.append(f"step {record.step}: {number} is honest, and {what}")
    return broken
