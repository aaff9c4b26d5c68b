"""Coins: roles follow from coins that were closed while one could still lie, and tossed for this attempt alone."""

from troth.crypto import Slot, coin_commitment
from troth.protocol.core.coins import combine
from troth.protocol.core.records import StepRecord
from troth.protocol.wire.messages import Accuse, Commit, Phase
from troth.simulation.chaos.world import World


def coins(world: World) -> list[str]:
    """Coins A are open before reports are made (SPEC R1), and those of Commit are known when an attempt is repeated (SPEC N2)."""
    broken = []
    for outcome in world.witness:
        step, slot = outcome.record.step, _commit_slot(world, outcome.record)
        for attempt, accuses in outcome.accuses.items():
            opened = {peer: said.message.coin for peer, said in accuses.items() if isinstance(said.message, Accuse)}
            if attempt == outcome.attempts - 1 and combine("roles", step, attempt, opened) != outcome.record.randomness:
                broken.append(f"step {step}: the next roles do not follow from coins B")
            for peer in sorted(world.honest & opened.keys() & outcome.commits.keys()):
                commit, coin = outcome.commits[peer].message, opened[peer]
                assert isinstance(commit, Commit)
                if coin_commitment(coin, slot, peer, "A") == commit.coin_a:
                    broken.append(f"step {step}: the coin B of {world.numbers[peer]} was open before reports were made")
                if attempt and coin_commitment(coin, slot, peer, "B") == commit.coin_b:
                    broken.append(f"step {step}: {world.numbers[peer]} tossed no new coin for attempt {attempt}")
    return broken


def _commit_slot(world: World, record: StepRecord) -> Slot:
    return Slot(world.run.id, record.step, Phase.COMMIT, incarnation=record.incarnation)
