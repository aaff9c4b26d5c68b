"""A second draw of the auditors: taken where it helps, by whoever has done it least often."""

import pytest

from tests.protocol.small_runs import finished, kept_promises, records
from troth.protocol.wire.messages import ChargeKind, GuiltySide
from troth.workshop.attacks.heads import Reroller
from troth.workshop.simulation import ProtocolSimulation, Scenario

SIXTEEN = Scenario(
    task="quadratic:dimension=60",
    byzantine=7,
    attack="reroll:scale=10",
    attack_start=2,
    steps=12,
    evaluate_every=12,
    seed=1,
)


@pytest.fixture(scope="module")
def rerolled() -> ProtocolSimulation:
    return finished(SIXTEEN)


def rollers(simulation: ProtocolSimulation) -> dict[tuple[int, int], int]:
    """Liars that made an attempt void, by attempt."""
    channel = next(peer.channel for peer in simulation.peers.values() if isinstance(peer.channel, Reroller))
    chosen = channel._rerolls.chosen.items()
    return {slot: simulation.numbers[peer] for slot, peer in chosen if peer is not None}


def test_void_attempts_are_made_again(rerolled: ProtocolSimulation) -> None:
    """[T6, N2] Nothing was laid open, so there is nothing to judge by: whoever accused is out, unpunished."""
    kept_promises(rerolled)
    assert rollers(rerolled)
    assert rerolled.attempts == 12 + 1 + len(rollers(rerolled)), "and the closing step"
    for (step, _), roller in rollers(rerolled).items():
        record = records(rerolled)[step]
        assert roller in {rerolled.numbers[peer] for peer in record.leaving}
        withheld = [j for j in record.judgements if j.verdict == GuiltySide.WITHHELD]
        assert {rerolled.numbers[j.target] for j in withheld} == {roller}  # type: ignore[index]
        assert all(j.kind == ChargeKind.AGGREGATE for j in withheld)


def test_it_is_each_ones_turn_once_before_anybodys_second(rerolled: ProtocolSimulation) -> None:
    used = list(rollers(rerolled).values())
    assert len(used) == len(set(used))


def test_a_void_attempt_has_everyone_audit(rerolled: ProtocolSimulation) -> None:
    """No second draw: once coins B are open, whoever has the attempt discarded is struck, and the next step audits all."""
    told = records(rerolled)
    assert all(told[step].struck for step, _ in rollers(rerolled))
    assert {ban.step for ban in rerolled.bans} & {step + 1 for step, _ in rollers(rerolled)}
