"""Strangers at the door of a simulated run: who works becomes a member, who does not never does."""

import dataclasses
from typing import Any

import pytest

from tests.protocol.small_runs import all_records, equals_trusted_server, finished, records
from troth.crypto import Digest, PeerId, derive
from troth.evidence.verify import verify_ban
from troth.protocol.core.door import Door, best_tickets
from troth.protocol.wire.messages import ChargeKind
from troth.workshop.simulation import ProtocolSimulation, Scenario
from troth.workshop.simulation.stranger_specs import Doing

OPEN = Scenario(task="quadratic:dimension=40", peers=5, steps=24, evaluate_every=24, probation=8)
LAZY = "zeros + noise + old + copies"


def run(strangers: str, **options: Any) -> ProtocolSimulation:
    return finished(dataclasses.replace(OPEN, strangers=strangers, **options))


def proven(simulation: ProtocolSimulation) -> dict[int, ChargeKind]:
    """Check that everyone agrees, that no honest peer is banned, and that each ban is proved; return what for, by number."""
    assert simulation.agreement
    assert {ban.peer for ban in simulation.bans} <= simulation.liars
    proofs = [verify_ban(evidence.text, simulation.run.id) for evidence in simulation.evidence]
    assert len(proofs) == len(simulation.bans)
    return {simulation.numbers[proof.banned]: proof.judgement.kind for proof in proofs}


def courses(simulation: ProtocolSimulation) -> dict[int, dict[str, Any]]:
    assert simulation.door is not None
    return {told["peer"]: told for told in simulation.door.chronicle.summary()["strangers"]}


def ever_members(simulation: ProtocolSimulation) -> set[int]:
    return {simulation.numbers[PeerId(peer)] for record in all_records(simulation) for peer in record.members}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_whoever_saves_itself_the_work_is_banned_and_never_a_member(seed: int) -> None:
    """[J5, J6] All four ways, and nothing of it reaches the model: a trusted server that ignores them gets the same bits."""
    simulation = run(LAZY, seed=seed, steps=16)
    assert proven(simulation) == dict.fromkeys(range(5, 9), ChargeKind.GRADIENT)
    assert ever_members(simulation) == set(range(5))
    assert equals_trusted_server(simulation)


@pytest.mark.long
def test_liars_among_the_founders_save_no_lazy_stranger() -> None:
    """[J6] They accuse no fellow and vote for it; honest auditors are drawn all the same."""
    simulation = run(LAZY, peers=8, byzantine=2, attack_start=15, steps=20)
    assert set(range(8, 12)) <= proven(simulation).keys()
    assert ever_members(simulation) == set(range(8))


@pytest.mark.long
def test_whoever_works_is_a_member_and_contributes() -> None:
    """[J4, J5, J7] One after the other, since one may come in within a probation; then they own parts, audit and vote."""
    simulation = run("honest:count=2", probation=4, steps=14)
    assert proven(simulation) == {}
    first, second = (courses(simulation)[number] for number in (5, 6))
    assert sorted((first["admitted"], second["admitted"])) == [6, 11]
    assert all(course["member"] and course["worked"] >= 4 for course in (first, second))
    keys = {peer for peer, number in simulation.numbers.items() if number >= 5}
    assert {PeerId(peer) for record in records(simulation) for peer in record.contributors} >= keys
    assert equals_trusted_server(simulation)


@pytest.mark.long
def test_an_honest_candidate_that_misses_a_step_becomes_a_member() -> None:
    """[J5, J7] A step later than one that misses none; its seat costs as many gradients."""
    missing, steady = (courses(run(f"honest:misses={misses}", probation=8, steps=16))[5] for misses in (7, 0))
    assert (missing["missed"], steady["missed"]) == (1, 0)
    assert missing["admitted"] == steady["admitted"] + 1
    assert missing["worked"] == steady["worked"] == 8
    assert missing["member"]
    assert not missing["lost"]


@pytest.mark.long
def test_whoever_misses_every_other_step_loses_its_slot_again_and_again() -> None:
    """[J5] With the third miss, after three steps of work: it would hold a slot for half the gradients."""
    simulation = run("honest:misses=2 + honest", probation=8, steps=40)
    careless, steady = courses(simulation)[5], courses(simulation)[6]
    assert len(careless["lost"]) >= 2
    assert careless["admitted"] is None
    assert steady["member"]
    assert proven(simulation) == {}


def test_newcomers_find_liars_too() -> None:
    """[J7, T2] A newcomer's audit and vote count like a founder's."""
    simulation = run("honest", peers=4, byzantine=1, attack_start=7, probation=4, steps=20)
    assert proven(simulation) == dict.fromkeys(simulation.byzantine, ChargeKind.GRADIENT)
    trial = next(record for record in all_records(simulation) if record.judgements)
    assert len(trial.members) == 5


@pytest.mark.long
@pytest.mark.parametrize("attack", ["sign-flip", "alie", "label-flip", "wrong-report"])
def test_a_turncoat_is_banned_after_it_was_admitted(attack: str) -> None:
    """[B4, D1, V1] Its first step is audited for certain, and lies of other kinds are found as founders' are."""
    task = "digits" if attack == "label-flip" else OPEN.task
    simulation = run(f"turns:attack={attack}", task=task, probation=4, steps=10)
    course = courses(simulation)[5]
    assert (course["admitted"], course["member"]) == (6, False)
    assert proven(simulation) == {5: ChargeKind.REPORT if attack == "wrong-report" else ChargeKind.GRADIENT}
    assert course["banned"] in (7, 8)
    assert simulation.pool.attackers <= {5}


@pytest.mark.long
def test_whoever_leaves_before_the_audit_is_banned_all_the_same() -> None:
    """[R4, B3, B8, J7] It lies, leaves, comes back and lies again; targets are drawn among those who left too."""
    simulation = run("leaves:stay=3", probation=4, steps=20, seed=3)
    course = courses(simulation)[5]
    assert (course["admitted"], course["left"], course["returned"]) == (6, [10], [12])
    assert (course["banned"], proven(simulation)) == (16, {5: ChargeKind.GRADIENT})
    before, after = all_records(simulation)[15:17]
    assert len(before.members) == 6
    assert [judgement.step for judgement in after.judgements] == [15], "in the step in which it was silent"
    assert not course["member"]


@pytest.mark.long
def test_an_attacker_works_for_no_more_seats_than_it_has_machines() -> None:
    """[J4, J5] A thousand names with two machines: the other slots stay empty, and are given away again."""
    simulation = ProtocolSimulation(
        dataclasses.replace(OPEN, strangers="names:count=1000,machines=2", probation=4, steps=16)
    )
    worked = []
    for _ in simulation.steps():
        assert simulation.door is not None
        busy = [s for s in simulation.door.strangers if s.state is not None and s.doing is Doing.WORK]
        worked.append(len(busy))
    assert max(worked) == 2
    assert proven(simulation) == {}
    assert len(ever_members(simulation) - set(range(5))) == 2
    assert sum(bool(course["lost"]) for course in courses(simulation).values()) > 2


@pytest.mark.long
def test_a_thousand_names_that_work_nothing_get_no_seat() -> None:
    """[J6] Each costs its key."""
    simulation = run("names:count=1000,machines=9,strategy=fakes", steps=16)
    assert set(proven(simulation).values()) == {ChargeKind.GRADIENT}
    assert ever_members(simulation) == set(range(5))


@pytest.mark.long
def test_many_names_win_no_more_slots_than_the_hashes_behind_them() -> None:
    """[J4] With a third of the hashing an attacker wins a third of the draws, under four names or a thousand."""
    for count in (4, 1000):
        scenario = dataclasses.replace(OPEN, strangers=f"names:count={count},hash_share=0.33333 + noise:count=2")
        simulation = ProtocolSimulation(scenario)
        assert simulation.door is not None
        names, others = simulation.door.parties
        won = 0
        for draw in range(200):
            door = dataclasses.replace(Door.founding(simulation.run), seed=Digest(derive(draw, "door")))
            found = [*names.search(door, 0, len(others.strangers)), *others.search(door, 0, len(names.strangers))]
            best = best_tickets(simulation.run.id, door, [ticket for _, ticket in found], (), simulation.tools)[0]
            won += best.key in {stranger.me for stranger in names.strangers}
        assert 40 <= won <= 93, "66.7 on average: four standard deviations either way"


@pytest.mark.long
def test_the_models_bits_do_not_depend_on_what_candidates_hand_in() -> None:
    """[J5] The same run with zeros, noise and honest work on probation: as long as nobody is admitted, every record names the
    same models, also where liars look at others' gradients."""
    options = dataclasses.replace(OPEN, byzantine=1, attack="ipm-0.1", attack_start=2, steps=8, strangers="noise")
    simulation = finished(options)
    models = [record.state_after for record in records(simulation)]
    for strangers in ("zeros", "honest"):
        other = ProtocolSimulation(dataclasses.replace(options, strangers=strangers), run=simulation.run)
        for _ in other.steps():
            pass
        assert [record.state_after for record in records(other)] == models
        assert any(record.probed for record in records(other))


@pytest.mark.long
def test_more_gradients_than_the_widest_probed_call_are_computed_in_several() -> None:
    """[D1] Bits may depend on the width of a call, so widths that were not probed are never used."""
    scenario = dataclasses.replace(
        OPEN, task="digits-cnn", peers=4, slots=1, probation=2, strangers="honest:count=3", steps=14
    )
    simulation = finished(scenario)
    assert scenario.at_once == 5
    assert ever_members(simulation) == set(range(7))
    assert proven(simulation) == {}


def test_without_strangers_a_run_is_what_it_was() -> None:
    """[S1] A closed door adds nothing to a run's options, so its id, and every draw, is that of the options."""
    closed = Scenario(
        task="quadratic:dimension=60", peers=7, byzantine=2, attack_start=3, steps=30, evaluate_every=30, seed=2
    )
    assert ProtocolSimulation(closed).run.id.hex()[:16] == "a0edd8604573a032"
    assert not closed.as_dict().keys() & {"probation", "slots", "strangers"}
    opened = dataclasses.replace(OPEN, strangers=("honest", "noise:at=3"))
    assert opened.as_dict()["strangers"] == "honest + noise:at=3"
    assert Scenario(**opened.as_dict()) == opened
