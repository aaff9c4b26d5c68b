"""A contribution of several local steps is the mean of gradients met on a walk that follows from public data. [R2]"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.protocol.samples import quiet_record
from tests.training.examples import Lines
from tests.training.ordinary import HalfFrozen, Sums
from troth.crypto import PeerId, Seed, derive
from troth.evidence.file_format import RecomputeError
from troth.evidence.recompute import Gradients
from troth.protocol.core.run import MOST_LOCAL_STEPS, Parameters, RunError
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem, Task, make_optimizer
from troth.training.hardware import class_digest
from troth.training.optimizers import State, bound
from troth.training.work import RATE, Bounded, Training, TrainingWork, finite_or_zero

RATES = (0.1, 0.05, 0.01)
SEED = derive(3, "gradient")
OPTIMIZERS = ["sgd", "sgd:momentum=0,nesterov=false", "adamw", "lamb"]
TASKS = [Lines(), HalfFrozen(), Sums()]  # plain, with BatchNorm, with dropout
RUN = Parameters(size=10, tau=1.0, byzantine=1)


def work_of(
    task: Task, optimizer: str = "sgd", steps: int = 4, outer: float = 1.0, rates: tuple[float, ...] = RATES
) -> TrainingWork:
    problem = Problem(task, lanes_for=3)
    return TrainingWork(problem, make_optimizer(optimizer), rates, Primitives(), local_steps=steps, outer=outer)


def later(work: TrainingWork, updates: int = 10) -> Training:
    """A state with a past."""
    training = work.first(7)
    for step in range(updates):
        training = work.update(training, work.gradient_now(training, derive(9, step)), step)
    return training


def one_gradient(work: TrainingWork, x_D: Tensor, seed: Seed) -> Tensor:
    return finite_or_zero(work.problem.gradients(x_D, [work.problem.batch(seed)])[1][0])


def walked(work: TrainingWork, optimizer: str, training: Training, rate: float, steps: int) -> Tensor:
    """The same by the clause's words."""
    bounded = Bounded(bound(make_optimizer(optimizer), work.problem.layout))
    state: State = {name: tensor for name, tensor in training.optimizer.items() if name != RATE}
    x_D, met = training.parameters_D, list[Tensor]()
    for h in range(steps):
        met.append(one_gradient(work, x_D, derive(SEED, "local", h)))
        x_D, state = bounded.update(x_D, met[-1], state, rate)
    total_D = met[0]
    for gradient_D in met[1:]:
        total_D = total_D + gradient_D
    return total_D * (1 / steps)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_auditor_and_contributor_have_the_same_bits_whatever_they_computed_before(task: Task, optimizer: str) -> None:
    """[R2, D1]"""
    mine, other = work_of(task, optimizer), work_of(task, optimizer)
    training = later(mine)
    mine.gradient_now(later(mine, 3), derive(5))
    found_D = mine.gradient_now(training, SEED)
    theirs = other.unpack(mine.pack(training))
    assert not isinstance(theirs, Malformed)
    assert torch.equal(other.gradient_now(theirs, SEED), found_D)
    assert torch.equal(found_D, walked(mine, optimizer, training, RATES[-1], 4))
    assert found_D.any()
    assert not torch.equal(found_D, mine.gradient_now(training, derive(4)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_walk_changes_nothing_of_the_state(optimizer: str) -> None:
    work = work_of(Lines(), optimizer)
    training = later(work)
    before = work.pack(training)
    work.gradient_now(training, SEED)
    assert work.pack(training) == before


def test_walks_have_the_rate_of_the_next_update_and_the_update_that_of_all_steps() -> None:
    work = work_of(Lines(), "sgd:momentum=0,nesterov=false", steps=4, outer=0.5)
    training = work.first(7)
    for step in range(5):
        rate = RATES[min(step, 2)]
        assert float(training.optimizer[RATE]) == rate
        gradient_D = work.gradient_now(training, SEED)
        assert torch.equal(gradient_D, walked(work, "sgd:momentum=0,nesterov=false", training, rate, 4))
        before_D, training = training.parameters_D, work.update(training, gradient_D, step)
        assert torch.equal(training.parameters_D, before_D - gradient_D * (rate * (4 * 0.5)))


def test_one_local_step_is_the_gradient_of_the_seed_and_its_state_holds_no_rate() -> None:
    work = work_of(Lines(), steps=1)
    training = later(work)
    assert RATE not in training.optimizer
    assert torch.equal(work.gradient_now(training, SEED), one_gradient(work, training.parameters_D, SEED))


def test_a_state_of_another_run_begins_with_this_ones_rate() -> None:
    one, several = work_of(Lines(), steps=1), work_of(Lines(), steps=4)
    begun = several.begin(later(one))
    assert float(begun.optimizer[RATE]) == RATES[0]
    assert float(several.begin(later(several)).optimizer[RATE]) == RATES[0]
    assert one.begin(later(several)).optimizer.keys() == later(one).optimizer.keys()


def test_an_inner_gradient_that_is_not_finite_counts_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of(Lines(), "sgd:momentum=0,nesterov=false")
    training, plain = later(work), work.problem.batch

    def batch(seed: Seed) -> dict[str, Tensor]:
        drawn = plain(seed)
        return {**drawn, "x": drawn["x"] * torch.inf} if seed == derive(SEED, "local", 1) else drawn

    monkeypatch.setattr(work.problem, "batch", batch)
    met = list[Tensor]()

    def gradient(parameters_D: Tensor, seed: Seed) -> Tensor:
        met.append(one_gradient(work, parameters_D, seed))
        return met[-1]

    found_D = work.walk(training, SEED, gradient)
    assert [bool(one.any()) for one in met] == [True, False, True, True]
    assert torch.equal(found_D, work.gradient_now(training, SEED))
    assert torch.equal(found_D, (met[0] + met[1] + met[2] + met[3]) * 0.25)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_walk_that_is_not_finite_gives_zeros(optimizer: str) -> None:
    """[R2] Some gradients of it were finite: which of them counted would depend on when somebody looks."""
    work = work_of(Lines(), optimizer, rates=(1e38,))
    training = work.first(7)
    assert work._gradient(training.parameters_D, SEED)[1].any()
    assert not work.gradient_now(training, SEED).any()


def test_local_steps_are_within_bounds_and_left_out_where_there_is_one() -> None:
    assert "local_steps" not in RUN.plain()
    several = replace(RUN, local_steps=8)
    assert several.plain()["local_steps"] == 8
    assert Parameters.from_plain(several.plain()) == several
    with pytest.raises(ValueError, match="one form"):
        Parameters.from_plain({**RUN.plain(), "local_steps": 1})
    for wrong in (0, MOST_LOCAL_STEPS + 1):
        with pytest.raises(RunError, match="`local_steps` must be 1 to 1,000"):
            replace(RUN, local_steps=wrong)
    with pytest.raises(RunError, match="use `local_steps` 1, or machines of one class"):
        replace(RUN, local_steps=2, deviation=1e-3)


def test_the_class_of_a_run_with_local_steps_is_that_of_its_walk() -> None:
    one, several, again = (work_of(Lines(), steps=steps).hardware_class() for steps in (1, 4, 4))
    assert one != several == again
    assert one == class_digest(Problem(Lines(), lanes_for=3))


def test_a_state_that_somebody_made_up_is_a_reason_and_no_crash() -> None:
    """[E3] Evidence of a run that never was may show any state, one without moments or rate too."""
    work = work_of(Lines())
    record = quiet_record(3, ())
    states: list[State] = [{}, {RATE: torch.tensor([1.0])}, {**work.first(0).optimizer, RATE: torch.empty(0)}]
    for state in states:
        gradients = Gradients.at(record, Training(work.first(0).parameters_D, state), work, replace(RUN, size=4))
        with pytest.raises(RecomputeError, match="the task fails here"):
            gradients.root(PeerId(bytes(32)))
