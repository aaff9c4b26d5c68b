"""Agreement and safety: honest peers hold one history, and no honest peer is banned in it."""

from collections.abc import Iterator

from troth.protocol.core.records import StepRecord, encode_record, right_signers
from troth.simulation.chaos.world import World
from troth.simulation.lockstep.memo import MemoPrimitives
from troth.simulation.lockstep.pool import same_bits


def agreement(world: World) -> list[str]:
    """Honest peers hold the same roster, randomness, verdicts and model after every step, bit for bit.

    Records that a peer could not prove, and gave up, count too: if honest peers write different ones, too few sign either, and a
    liar that can repeat this stops the run. A peer that the network fails is beyond what announcements assume (every frame within
    Δ): it may write a record of its own, which nobody signs, and falls out. What it can prove is what the others hold."""
    broken, failed, held = [], world.plan.network.unreached, world.held
    for (step, incarnation), written in sorted(world.written.items()):
        different = sum(not who <= failed for who in written.values())
        if different > 1:
            broken.append(f"step {step}, incarnation {incarnation}: honest peers wrote {different} different records")
    for step in range(world.plan.steps):
        ended = {number: outcomes[step] for number, outcomes in held.items() if step in outcomes}
        ended = {number: one for number, one in ended.items() if number not in failed or _certified(world, one.record)}
        if len({encode_record(outcome.record) for outcome in ended.values()}) > 1:
            broken.append(f"step {step}: honest peers have different records")
        if len({outcome.state.roster for outcome in ended.values()}) > 1:
            broken.append(f"step {step}: honest peers have different rosters")
        models = [outcome.state.training.parameters_D for outcome in ended.values()]
        if any(not same_bits(models[0], model) for model in models[1:]):
            broken.append(f"step {step}: honest peers have different models")
    return broken


def _certified(world: World, record: StepRecord) -> bool:
    """Whether an honest peer could ever prove this record (SPEC U2)."""
    return encode_record(record) in world.histories.get((record.step, record.incarnation), ())


def safety(world: World) -> list[str]:
    """However many honest peers are gone: one history, no step made by liars alone, and no honest ban.

    Other checkers look through the peer that saw the most. This one looks at everything that any honest peer ever held,
    so a peer that was led into a history of its own is found too.
    """
    return [*_several_histories(world), *_made_by_liars(world), *_honest_bans(world)]


def _several_histories(world: World) -> Iterator[str]:
    for (step, incarnation), records in sorted(world.histories.items()):
        if len(records) > 1:
            yield f"step {step}, incarnation {incarnation}: honest peers hold {len(records)} certified records of it"


def _made_by_liars(world: World) -> Iterator[str]:
    tools, checked = MemoPrimitives(), set[tuple[int, bytes]]()
    for number, outcomes in sorted(world.outcomes.items()):
        for step, outcome in sorted(outcomes.items()):
            raw = encode_record(outcome.record)
            if (step, raw) in checked:
                continue
            after = outcomes.get(step + 1)
            if after is None or after.record.incarnation != outcome.record.incarnation:
                continue  # its signatures come with the next step
            checked.add((step, raw))
            assert outcome.state.last is not None
            right = right_signers(world.run.id, step, raw, outcome.state.last.signers, after.certificate, tools)
            if not right.keys() & world.honest:
                yield f"step {step}: no honest peer signed the record that {number} holds"


def _honest_bans(world: World) -> Iterator[str]:
    held: list[tuple[int, StepRecord]] = [
        (number, outcome.record) for number, outcomes in world.outcomes.items() for outcome in outcomes.values()
    ]
    for number, banned in sorted({(number, peer) for number, record in held for peer in record.banned}):
        if banned in world.honest:
            yield f"{number} holds a record in which {world.numbers[banned]}, who is honest, is banned"
