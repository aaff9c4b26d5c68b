"""Real classes of hardware in one run: some peers compute their gradients, audits and verdicts on another machine. [D3]

On a machine with a GPU the last tests compare it with its CPU; elsewhere float64 is the way that has other bits.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from troth.crypto import derive
from troth.errors import OperatorError
from troth.training import Batch, Problem
from troth.training.hardware import GradientJob, Machine, make_machines
from troth.training.work import finite_or_zero
from troth.workshop.simulation import ProtocolSimulation, Scenario
from troth.workshop.simulation.gradients import PooledWork

H = 1e-3  # far above what float64 and float32 differ by; a ReLU that flips would be more, so the tests take tanh
MIXED = Scenario(
    task="digits:activation=tanh",
    peers=9,
    validators=2,
    machines="cpu:peers=3,float64=true",
    deviation=H,
    steps=12,
    evaluate_every=12,
)


def finished(scenario: Scenario) -> ProtocolSimulation:
    simulation = ProtocolSimulation(scenario)
    for _ in simulation.steps():
        pass
    return simulation


@pytest.mark.long
def test_audits_across_classes_ban_nobody_and_all_hold_the_same_model() -> None:
    simulation = finished(MIXED)
    assert simulation.agreement
    assert not simulation.bans
    assert simulation.trials == 0
    assert 0 < simulation.tolerant_audits < simulation.audits


def test_the_last_peers_are_of_the_other_class_and_say_so() -> None:
    simulation = ProtocolSimulation(MIXED)
    works = {simulation.numbers[peer]: member.work for peer, member in simulation.peers.items()}
    classes = [works[number].hardware_class() for number in range(9)]
    assert len({*classes[:6]}) == len({*classes[6:]}) == 1
    assert classes[0] != classes[8]


@pytest.mark.long
def test_classes_of_equal_bits_are_one_class() -> None:
    """The same machine under another name computes the same bits, and audits stay exact."""
    simulation = finished(replace(MIXED, machines="cpu:peers=3", one_by_one=True))
    assert (simulation.tolerant_audits, simulation.agreement, simulation.trials) == (0, True, 0)


def test_without_deviation_other_bits_would_be_a_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is really another one: in a run that takes all for one class its peers would be banned at an audit."""
    monkeypatch.setattr("troth.workshop.simulation.scenario._check_machines", lambda _: None)
    simulation = finished(replace(MIXED, deviation=None))
    assert simulation.trials > 0


@pytest.mark.long
def test_gradients_audits_and_verdicts_all_come_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits take no gradient from the pool, and the pool none from the run's device: each comes from where its peer computes."""
    jobs: list[int] = []
    plain, alone = Machine.gradients, Machine.gradient

    def several(self: Machine, some: Sequence[GradientJob]) -> list[tuple[float, Tensor]]:
        jobs.append(len(some))
        return plain(self, some)

    def one(self: Machine, parameters_D: Tensor, batch: Batch) -> tuple[float, Tensor]:
        assert self.problem.dtype == torch.float64
        jobs.append(-1)
        return alone(self, parameters_D, batch)

    monkeypatch.setattr(Machine, "gradient", one)
    monkeypatch.setattr(Machine, "gradients", several)
    simulation = ProtocolSimulation(MIXED)
    probes, numbers, audits = jobs.count(-1), simulation.numbers, 0
    jobs.clear()
    assert probes == 1
    looked_at = simulation._look_at

    def counted(outcomes):  # type: ignore[no-untyped-def]
        nonlocal audits
        audits += sum(len(outcome.audited) for peer, outcome in outcomes.items() if numbers[peer] >= 6)
        return looked_at(outcomes)

    monkeypatch.setattr(simulation, "_look_at", counted)
    for _ in simulation.steps():
        pass
    assert audits > 0
    assert jobs.count(-1) == audits
    assert max(jobs) == 3


@pytest.mark.long
def test_a_liar_on_another_machine_is_caught_across_classes() -> None:
    scenario = replace(MIXED, byzantine=2, attack="sign-flip", attack_start=2, steps=40, evaluate_every=40)
    simulation = finished(scenario)
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)
    assert simulation.agreement
    assert simulation.tolerant_audits


@pytest.mark.long
def test_a_liar_poisons_the_batch_of_its_own_machine() -> None:
    """Seed 1 has two liars among the last three."""
    scenario = replace(MIXED, byzantine=3, attack="label-flip", attack_start=2, steps=40, evaluate_every=40, seed=1)
    simulation = finished(scenario)
    assert max(simulation.byzantine) >= 6
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine)


@pytest.mark.long
def test_equal_scenarios_give_equal_records() -> None:
    first, second = finished(MIXED), finished(MIXED)
    assert first.trace == second.trace
    assert first.trace != finished(replace(MIXED, machines="cpu:peers=2,float64=true")).trace


class TestMachine:
    def test_side_by_side_and_alone_have_the_same_bits(self) -> None:
        """With more jobs than cores; every job at its own parameters."""
        task = MIXED.make_task()
        for spec in ("cpu:threads=1", "cpu:threads=1,float64=true", "cpu:threads=2"):
            machine = Machine(task, make_machines(spec)[0])
            states = [machine.problem.initial(k).float() for k in range(3)]
            batches = [machine.problem.batch(derive(k)) for k in range(9)]
            together = machine.gradients([GradientJob(states[k % 3], batch) for k, batch in enumerate(batches)])
            for k, (loss, gradient_D) in enumerate(together):
                alone, own_D = machine.gradient(states[k % 3], batches[k])
                assert loss == alone
                assert gradient_D.dtype == torch.float32
                assert torch.equal(gradient_D, own_D)

    def test_it_computes_with_a_problem_of_its_own(self) -> None:
        task = MIXED.make_task()
        machine, problem = Machine(task, make_machines("cpu")[0]), Problem(task, one_by_one=True)
        flat_D, seed = problem.initial(0), derive(7)
        own_D = problem.gradient(flat_D, problem.batch(seed))[1]
        assert torch.equal(machine.gradient(flat_D, machine.problem.batch(seed))[1], own_D)

    def test_threads_are_left_as_they_were(self) -> None:
        before = torch.get_num_threads()
        machine = Machine(MIXED.make_task(), make_machines(f"cpu:threads={before + 1}")[0])
        machine.gradients([GradientJob(machine.problem.initial(0), machine.problem.batch(derive(0)))])
        assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deviation": None}, "`machines` needs `deviation`"),
        ({"machines": "cpu:peers=9"}, "`machines` must leave a peer on `device` cpu, got 9 of 9"),
        ({"machines": "cpu:peers=5 + cpu:peers=4,float64=true"}, "got 9 of 9"),
        ({"machines": "tpu:peers=2"}, "unknown machine 'tpu'"),
        ({"machines": "cpu:peers=0"}, "peers must be at least 1, got 0"),
        ({"machines": "cpu:threads=-1"}, "threads must be from 0 to 1024, got -1"),
        ({"defence": "mean", "deviation": None}, "`machines` needs `deviation`"),
    ],
)
def test_what_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        replace(MIXED, **options)  # type: ignore[arg-type]


def test_a_sequence_of_machines_is_one_string() -> None:
    scenario = replace(MIXED, machines=("cpu:peers=2", "cpu:peers=1,float64=true"))
    assert scenario.machines == "cpu:peers=2 + cpu:peers=1,float64=true"
    assert scenario.as_dict()["machines"] == scenario.machines
    assert "machines" not in replace(MIXED, machines="").as_dict()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_here() -> None:
    with pytest.raises(OperatorError, match="`machines` cuda: PyTorch sees no CUDA device here"):
        replace(MIXED, machines="cuda:peers=2")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestGPU:
    def test_a_gpu_and_a_cpu_train_together(self) -> None:
        simulation = finished(replace(MIXED, device="cuda", machines="cpu:peers=3"))
        assert (simulation.agreement, simulation.bans) == (True, [])
        assert 0 < simulation.tolerant_audits < simulation.audits

    def test_the_cpu_computes_what_a_cpu_alone_would(self) -> None:
        simulation = ProtocolSimulation(replace(MIXED, device="cuda", machines="cpu:peers=3"))
        work = next(m.work for peer, m in simulation.peers.items() if simulation.numbers[peer] == 8)
        training = simulation.states[simulation.honest[0]].training
        alone, seed = Problem(simulation.problem.task, one_by_one=True), derive(5)
        own_D = alone.gradient(training.parameters_D.cpu(), alone.batch(seed))[1]
        assert isinstance(work, PooledWork)
        found_D = work.gradient_now(training, seed)
        assert found_D.is_cuda
        assert torch.equal(found_D.cpu(), finite_or_zero(own_D))
