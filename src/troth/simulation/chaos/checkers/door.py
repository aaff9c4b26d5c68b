"""The door: whoever is let in has worked for it, and not too many are (SPEC J4–J7)."""

from collections.abc import Iterator

from troth.protocol.core.records import StepRecord
from troth.simulation.chaos.world import World

_LAZY = frozenset({"noise", "zeros", "old", "copy"})


def door(world: World) -> list[str]:
    """Nobody is admitted without a probation of committed gradients, nor more than there may be; those who did not compute them
    are not members in the end."""
    return [*_unearned(world), *_too_many(world), *_lazy(world)] if world.plan.probation else []


def _unearned(world: World) -> Iterator[str]:
    probation, by_step = world.plan.probation, {record.step: record for record in world.records}
    for record in world.records:
        for newcomer in record.admitted:
            steps = [by_step.get(step) for step in range(record.step - probation + 1, record.step + 1)]
            if not all(one is not None and newcomer.key in dict(one.probed) for one in steps):
                yield f"step {record.step}: {world.name(newcomer.key)} was admitted without {probation} steps of work"


def _too_many(world: World) -> Iterator[str]:
    records: list[StepRecord] = world.records
    for record in records:
        if len(record.candidates) > world.run.parameters.slots:
            yield f"step {record.step}: {len(record.candidates)} candidates for {world.run.parameters.slots} slots"
        window = [one for one in records if record.step - world.plan.probation < one.step <= record.step]
        admitted = sum(len(one.admitted) for one in window)
        most = max(max(1, len(one.members) // 8) for one in window)
        if admitted > most:
            yield f"step {record.step}: {admitted} were admitted within one probation, at most {most} may be"


def _lazy(world: World) -> Iterator[str]:
    if not world.plan.within or not world.witness:
        return
    members = world.witness[-1].state.roster.members
    for number, (_, how) in world.plan.strangers.items():
        if how in _LAZY and any(world.numbers.get(peer) == number for peer in members):
            yield f"stranger {number} is a member, and never computed a gradient ({how})"
