"""Gradients clipped by their norm: the same bits one by one, in a batch, for a contributor and for an auditor."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.training.examples import Lines
from troth.clip.exact import exact_norm
from troth.crypto import derive, stream
from troth.protocol.wire.primitives import Primitives
from troth.training import SGD, Problem, TaskError, make_task
from troth.training.hardware import class_digest
from troth.training.problem import clipped
from troth.training.tasks.small_images import Digits
from troth.training.work import TrainingWork
from troth.workshop.simulation import ProtocolSimulation, Scenario


@dataclass(frozen=True)
class ClippedDigits(Digits):
    """digits with short gradients"""

    hidden: int = 5

    clip_norm = 0.75


def vector(size: int, length: float) -> Tensor:
    drawn_D = torch.from_numpy(stream(size, "vector").normal(size)).float()
    return drawn_D * (length / float(drawn_D.norm()))


@pytest.mark.parametrize("size", [1, 7, 1000, 300_000])
def test_a_long_gradient_keeps_its_direction(size: int) -> None:
    gradient_D = vector(size, 3.0)
    short_D = clipped(gradient_D.clone(), 0.5)
    assert exact_norm(short_D) == pytest.approx(0.5, rel=1e-6)
    torch.testing.assert_close(short_D, gradient_D * (0.5 / 3.0))


@pytest.mark.parametrize("most", [None, 3.1])
def test_a_short_one_stays_bit_for_bit(most: float | None) -> None:
    gradient_D = vector(100, 3.0)
    assert torch.equal(clipped(gradient_D.clone(), most), gradient_D)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_one_that_is_not_finite_stays_so(odd: float) -> None:
    gradient_D = vector(100, 3.0)
    gradient_D[17] = odd
    assert not clipped(gradient_D, 0.5).isfinite().all()


def test_one_by_one_in_a_batch_and_as_an_auditor() -> None:
    pool, alone = Problem(ClippedDigits(), lanes_for=8), Problem(ClippedDigits(), lanes_for=8)
    work = TrainingWork(alone, SGD(), (0.1,), Primitives())
    training = work.first(3)
    seeds = [derive(0, "peer", k) for k in range(8)]
    _, gradients_PD = pool.gradients(training.parameters_D, [pool.batch(seed) for seed in seeds])
    for seed, gradient_D in zip(seeds, gradients_PD, strict=True):
        assert exact_norm(gradient_D) <= 0.75 * (1 + 1e-6)
        assert torch.equal(work.gradient_now(training, seed), gradient_D)
    free_PD = Problem(Digits(hidden=5)).gradients(training.parameters_D, [pool.batch(seed) for seed in seeds])[1]
    lengths_P = free_PD.norm(dim=1)
    assert lengths_P.min() < 0.75 < lengths_P.max(), "some are clipped, and some are not"


def test_one_by_one_clips_once() -> None:
    problem = Problem(ClippedDigits(), one_by_one=True)
    flat_D, batches = problem.initial(0), [problem.batch(derive(0, k)) for k in range(3)]
    gradients_PD = problem.gradients(flat_D, batches)[1]
    for batch, gradient_D in zip(batches, gradients_PD, strict=True):
        assert torch.equal(problem.gradient(flat_D, batch)[1], gradient_D)


def test_it_counts_in_the_hardware_class() -> None:
    """A peer that clips otherwise is told so before the run: its probe differs."""
    one, same, other = (class_digest(Problem(make_task(f"digits:clip_norm={most}"))) for most in (0.5, 0.5, 0.6))
    assert one == same != other


def test_audits_agree() -> None:
    run = ProtocolSimulation(Scenario(task=ClippedDigits(), peers=5, steps=6, byzantine=1, attack_start=2))
    bans = [ban for report in run.steps() for ban in report.bans]
    assert [ban.peer for ban in bans] == run.byzantine


@pytest.mark.parametrize("most", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_values(most: float) -> None:
    @dataclass(frozen=True)
    class Wrong(Lines):
        clip_norm = most

    with pytest.raises(TaskError, match=r"Task\.clip_norm is None or a positive number, got"):
        Problem(Wrong())
