"""What a lie within the tolerance of other hardware comes to, by the classes that judge it. [D1, D3]"""

from dataclasses import replace

import pytest

from troth.protocol.core.records import decode_record
from troth.protocol.wire.messages import ChargeKind
from troth.workshop.simulation import ProtocolSimulation, Scenario

H, START = 1e-3, 2
# A quadratic has no kinks: honest peers of another class are far below h, and a lie is all that can be seen.
ONE_CLASS = Scenario(
    task="quadratic:dimension=64",
    peers=9,
    byzantine=3,
    validators=2,
    attack_start=START,
    attack=f"hide:deviation={H}",
    deviation=H,
    steps=30,
    evaluate_every=30,
)
TWO_CLASSES = replace(ONE_CLASS, machines="cpu:peers=4,float64=true")


def finished(scenario: Scenario) -> ProtocolSimulation:
    simulation = ProtocolSimulation(scenario)
    for _ in simulation.steps():
        pass
    assert simulation.agreement
    assert {ban.peer for ban in simulation.bans} <= set(simulation.byzantine)
    return simulation


def kinds(simulation: ProtocolSimulation) -> set[ChargeKind]:
    judged = (judgement for raw in simulation.trace for judgement in decode_record(raw).judgements)
    return {judgement.kind for judgement in judged if judgement.banned is not None}


@pytest.mark.long
@pytest.mark.parametrize("deviation", [None, H])
def test_in_one_class_the_bits_tell(deviation: float | None) -> None:
    """[D1] With an agreed h too, as long as liars own up to the class that all others have."""
    honest_word = replace(ONE_CLASS, attack=f"hide:deviation={H},disguise=false", deviation=deviation)
    simulation = finished(honest_word)
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)
    assert kinds(simulation) == {ChargeKind.GRADIENT}


@pytest.mark.long
def test_whoever_names_another_class_is_judged_by_deviation_alone() -> None:
    """[D3] The class is a peer's own word: one that nobody has cannot be compared with."""
    assert not finished(ONE_CLASS).bans


@pytest.mark.long
@pytest.mark.parametrize("disguise", ["true", "false"])
def test_where_no_class_is_a_quorum_nobody_judges_by_bits(disguise: str) -> None:
    """[D3] Nine peers in two classes: true or not, the class that a liar names makes no difference."""
    two = replace(TWO_CLASSES, attack=f"hide:deviation={H},disguise={disguise}")
    assert not finished(two).bans


def test_lies_above_what_is_accused_of_are_found_across_classes() -> None:
    """[D3] Three times 2.5h is above 5h, whoever looks."""
    simulation = finished(replace(TWO_CLASSES, attack=f"hide:deviation={H},share=3"))
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)
    assert kinds(simulation) == {ChargeKind.DEVIATION}
    assert simulation.tolerant_audits
