"""Peers that vanish at random moments: a handful of the thousand runs of `make drop-outs`, with the same checks."""

import dataclasses

import pytest

from benchmarks.drop_outs import Tally, checked_run, drawn
from troth.crypto import PeerId
from troth.protocol.core.run import StalledError
from troth.workshop.simulation import ProtocolSimulation, Scenario
from troth.workshop.simulation.exchange import DropOut, DroppingChannel, ReliableChannel


def stop(simulation: ProtocolSimulation, victim: PeerId, when: DropOut) -> None:
    member = simulation.peers[victim]
    channel = DroppingChannel(ReliableChannel(member.identity, member.tools), when)
    simulation.peers[victim] = dataclasses.replace(member, channel=channel)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_random_drop_outs(seed: int) -> None:
    """[N1, N4] Agreement, no honest ban, and updates in exactly the steps in which the design says so."""
    tally = checked_run(seed)
    assert tally.runs == 1
    assert tally.steps > 0


def test_the_draw_covers_what_it_should() -> None:
    scenarios = [drawn(seed) for seed in range(200)]
    assert {scenario.peers for scenario in scenarios} == set(range(4, 17))
    assert len({scenario.attack for scenario in scenarios if scenario.byzantine}) == 7
    assert any(scenario.drop_outs > scenario.peers // 2 for scenario in scenarios)


@pytest.mark.long
@pytest.mark.parametrize("call", range(8))
def test_one_peer_stops_at_every_moment_of_a_step(call: int) -> None:
    """[N1] Whatever it was about to do, the others finish the step, and it is no longer a member, and not banned."""
    simulation = ProtocolSimulation(
        Scenario(task="quadratic:dimension=24", peers=6, byzantine=0, steps=5, evaluate_every=5)
    )
    victim = simulation.honest[0]
    stop(simulation, victim, DropOut(2, call))
    reports = list(simulation.steps())
    assert [report.step for report in reports] == [1, 2, 3, 4, 5]
    assert simulation.absent == [simulation.numbers[victim]]
    assert simulation.agreement
    assert not simulation.bans
    gone_in = next(report.step for report in reports if report.absent) - 1
    assert gone_in == (2 if call < 6 else 3), "from Accuse on its absence shows in the next step"


def test_a_minority_stops() -> None:
    """[N4] Four of seven vanish in one step: three are no majority, and must not decide for the others."""
    simulation = ProtocolSimulation(
        Scenario(task="quadratic:dimension=24", peers=7, byzantine=0, steps=5, evaluate_every=5)
    )
    for victim in simulation.honest[:4]:
        stop(simulation, victim, DropOut(2, 4))
    assert [report.step for report in simulation.steps()] == [1, 2]
    assert simulation.stalled == "step 2: 3 of 7 members are left, 4 are needed"
    assert all(isinstance(simulation.gone[peer], StalledError) for peer in simulation.honest[4:])


def test_tallies_add_up() -> None:
    two = Tally(runs=1, steps=3) + Tally(runs=1, steps=4, bans=2)
    assert (two.runs, two.steps, two.bans) == (2, 7, 2)
