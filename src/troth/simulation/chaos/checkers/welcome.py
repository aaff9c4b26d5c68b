"""Welcome: honest strangers whom nothing fails come in, whatever liars and other strangers do (SPEC J3–J8)."""

from collections.abc import Iterator
from itertools import pairwise

from troth.crypto import PeerId
from troth.simulation.chaos.plan import HONEST
from troth.simulation.chaos.world import BOUNDS, World

_STEPS = 8  # that following, catching up and a draw may take, beside probation


def welcome(world: World) -> list[str]:
    """Within the full guarantee: no honest candidate that stays loses its slot, nor its seat once it is in, and whoever came
    early enough is in."""
    if not world.plan.within or not world.records:
        return []
    steady = {
        number for number, (_, how) in world.plan.strangers.items() if how == HONEST and number not in world.plan.leaves
    }
    return [
        *_stopped(world, steady),
        *_lost_slots(world, steady),
        *_lost_seats(world, steady),
        *_outside(world, steady),
    ]


def _stopped(world: World, steady: set[int]) -> Iterator[str]:
    """Nobody makes it give up, or believe that there are two histories."""
    for number in sorted(steady & world.stopped.keys()):
        yield f"{number} is honest, and stopped: {world.stopped[number]}"


def _lost_slots(world: World, steady: set[int]) -> Iterator[str]:
    for before, record in pairwise(world.records):
        if record.step != before.step + 1 or record.began:
            continue
        left = {one.key for one in record.candidates} | {one.key for one in record.admitted}
        for candidate in before.candidates:
            number = world.numbers.get(PeerId(candidate.key))
            if number in steady and candidate.worked and candidate.key not in left:
                yield f"step {record.step}: {number} is honest, and lost its slot"


def _lost_seats(world: World, steady: set[int]) -> Iterator[str]:
    for record in world.records:
        held = {"absent": record.absent, "struck": (*record.struck, *record.slowed), "expelled": record.expelled}
        for what, peers in held.items():
            for number in sorted(steady & {world.numbers.get(PeerId(peer), -1) for peer in peers}):
                yield f"step {record.step}: {number} came in, is honest, and {what}"


def _outside(world: World, steady: set[int]) -> Iterator[str]:
    """Of several who work at once, one comes in after the other; those at the door before it may take the slots for as long.
    With a shorter probation than `troth new` takes, it may be over before a content is named that can be fetched (SPEC J6)."""
    probation, strangers = world.plan.probation, len(world.plan.strangers)
    if probation < 2 * world.plan.content_every:
        return
    roster = world.witness[-1].state.roster
    inside = {world.numbers.get(peer) for peer in (*roster.members, *(gone.peer for gone in roster.away))}
    many = any(how == "flood" for _, how in world.plan.strangers.values())
    for number in sorted(steady - inside):
        # Members answer when a step ends, and whoever answers nothing has a quiet step's time for it, however quick steps are.
        later = [end for end in world.step_ends.values() if end > world.plan.strangers[number][0]]
        steps = sum(end > min(later) + BOUNDS.quiet_step + 4 * BOUNDS.delta for end in later)
        if steps >= _STEPS + probation * (strangers + 1) and not many:
            yield f"{number} is honest, at the door for {steps} steps with a probation of {probation}, and no member"
