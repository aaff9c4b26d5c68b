"""What an honest peer holds as the record of a step is what more than half of its members signed."""

from troth.crypto import PeerId
from troth.protocol.core.records import encode_record, right_signers
from troth.simulation.chaos.world import World
from troth.simulation.lockstep.memo import MemoPrimitives


def signed(world: World) -> list[str]:
    broken, tools = [], MemoPrimitives()
    for number, outcomes in sorted(world.outcomes.items()):
        for step, outcome in sorted(outcomes.items()):
            members, raw = tuple(map(PeerId, outcome.record.members)), encode_record(outcome.record)
            after = outcomes.get(step + 1)
            if after is None:
                continue  # its signatures come with the next step
            right = right_signers(world.run.id, step, raw, members, after.certificate, tools)
            if 2 * len(right) <= len(members):
                broken.append(
                    f"step {step}: {len(right)} of {len(members)} members signed the record that {number} holds"
                )
    return broken
