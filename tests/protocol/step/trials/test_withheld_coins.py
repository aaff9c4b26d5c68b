"""A member that keeps its coin to itself brings everyone's audit upon all."""

import dataclasses

import pytest

from tests.protocol.channel_wrappers import AlteringChannel, silent_in
from tests.protocol.small_runs import SMALL, finished, kept_promises, liars_gone, records, run_on, wrap_channel
from troth.crypto import PeerId
from troth.protocol.wire.messages import Accuse, ChargeKind
from troth.workshop.simulation import ProtocolSimulation, Scenario


def test_a_peer_that_withholds_its_coin_three_times_is_expelled() -> None:
    """[N3, R6] It is struck, everyone audits next, and the third time it has to go; nobody is banned for it."""
    simulation = ProtocolSimulation(dataclasses.replace(SMALL, byzantine=0, steps=9, evaluate_every=9))
    silent = simulation.honest[2]
    wrap_channel(simulation, silent, lambda channel: AlteringChannel(channel, silent_in((1, 3, 6), Accuse)))
    run_on(simulation)
    assert kept_promises(simulation) == {}
    for record in records(simulation):
        assert record.struck == ((silent,) if record.step in (1, 3, 6) else ())
        assert record.expelled == ((silent,) if record.step == 6 else ())
        everyone = record.step in (0, 2, 4, 7)  # in step 0 there is nothing to audit yet
        assert (record.contributors == record.members) == everyone
        assert (silent in record.members) == (record.step <= 6)
        assert record.absent == ()
    # One in each of the quiet steps 1, 3, 5, 6 and 8; in steps 2, 4 and 7 five for each of six contributors of the step before;
    # at the end five for each of the last five.
    assert simulation.audits == 5 + 3 * 6 * 5 + 5 * 5


@pytest.fixture(scope="module")
def ground() -> ProtocolSimulation:
    """Seven of sixteen flip signs, and withhold coin B whenever it would have an honest validator audit them."""
    scenario = Scenario(
        task="quadratic:dimension=60",
        byzantine=7,
        attack="grind",
        attack_start=2,
        steps=60,
        evaluate_every=60,
        seed=1,
    )
    return finished(scenario, until=liars_gone)


def test_withholding_a_coin_only_hastens_the_end(ground: ProtocolSimulation) -> None:
    """[R6, N3] The step after has no validators, and what the liar wanted to avoid comes to all of them."""
    banned = kept_promises(ground)
    assert banned == dict.fromkeys(ground.byzantine, ChargeKind.GRADIENT)
    by_step = records(ground)
    struck = [record for record in by_step if record.struck]
    assert struck
    for record in struck:
        assert {ground.numbers[PeerId(peer)] for peer in record.struck} <= set(ground.byzantine)
        following = by_step[record.step + 1]
        assert following.contributors == following.members, "no validators: everyone contributes"
        assert following.banned, "and everyone audits"
    by_audit_all = {ban.peer for ban in ground.bans if by_step[ban.step - 1].struck}
    assert len(by_audit_all) > len(ground.byzantine) / 2


def test_grinding_saves_nobody_compared_to_plain_lying(ground: ProtocolSimulation) -> None:
    """[R6] The same seed without the grinding takes longer to get rid of them."""
    last = max(ban.step for ban in ground.bans)
    plain = finished(
        dataclasses.replace(ground.scenario, attack="sign-flip"), until=lambda s: liars_gone(s) or s.steps_done > last
    )
    assert not liars_gone(plain)
