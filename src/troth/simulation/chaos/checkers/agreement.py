"""Honest peers hold the same roster, randomness, verdicts and model after every step, bit for bit."""

from troth.protocol.core.records import encode_record
from troth.simulation.chaos.world import World
from troth.simulation.lockstep.pool import same_bits


def agreement(world: World) -> list[str]:
    broken = []
    for step in range(world.plan.steps):
        ended = {number: outcomes[step] for number, outcomes in world.outcomes.items() if step in outcomes}
        if len({encode_record(outcome.record) for outcome in ended.values()}) > 1:
            broken.append(f"step {step}: honest peers have different records")
        if len({outcome.state.roster for outcome in ended.values()}) > 1:
            broken.append(f"step {step}: honest peers have different rosters")
        models = [outcome.state.training.parameters_D for outcome in ended.values()]
        if any(not same_bits(models[0], model) for model in models[1:]):
            broken.append(f"step {step}: honest peers have different models")
    return broken
