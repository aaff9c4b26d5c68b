"""Signatures: records carry those of a majority, and no honest key signs twice for one slot."""

from troth.protocol.core.records import encode_record, right_signers
from troth.simulation.chaos.world import World
from troth.simulation.lockstep.memo import MemoPrimitives


def signed(world: World) -> list[str]:
    """More than half of a step's members signed the record that an honest peer holds of it."""
    broken, tools = [], MemoPrimitives()
    for number, outcomes in sorted(world.held.items()):
        for step, outcome in sorted(outcomes.items()):
            members, raw = outcome.record.members, encode_record(outcome.record)
            after = outcomes.get(step + 1)
            if after is None:
                continue  # its signatures come with the next step
            assert outcome.state.last is not None
            right = right_signers(world.run.id, step, raw, outcome.state.last.signers, after.certificate, tools)
            if 2 * len(right) <= len(members):
                broken.append(
                    f"step {step}: {len(right)} of {len(members)} members signed the record that {number} holds"
                )
    return broken


def slots(world: World) -> list[str]:
    """No honest key signs two messages for one slot, whatever happened to its machine: liars could have it banned."""
    return [
        f"step {slot.step}: {world.numbers[peer]} signed {len(said)} messages for phase {slot.phase}, attempt {slot.attempt}"
        for (peer, slot), said in world.said.items()
        if len(said) > 1
    ]
