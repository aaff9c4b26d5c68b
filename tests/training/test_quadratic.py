"""The quadratic bowl: known optimum, known gradient, known noise."""

import pytest
import torch

from troth.crypto import derive
from troth.training import SGD, Problem
from troth.training.tasks.synthetic import Quadratic


def test_the_optimum_has_norm_one_and_the_run_starts_at_distance_one() -> None:
    task = Quadratic(dimension=200)
    problem = Problem(task)
    assert float(task.optimum().norm()) == pytest.approx(1, abs=1e-6)
    assert not problem.initial(0).any()
    assert problem.evaluate(problem.initial(0))["distance"] == pytest.approx(1, abs=1e-6)


def test_curvatures_run_from_one_over_condition_to_one() -> None:
    curvature_D = Quadratic(dimension=5, condition=4.0).curvature()
    torch.testing.assert_close(curvature_D, torch.tensor([0.25, 0.4375, 0.625, 0.8125, 1.0]))


def test_without_noise_the_gradient_is_the_curvature_times_the_distance() -> None:
    task = Quadratic(dimension=30, noise=0.0)
    problem = Problem(task, dtype=torch.float64)
    point_D = torch.linspace(-1, 1, 30, dtype=torch.float64)
    loss, gradient_D = problem.gradient(point_D, problem.batch(derive(0)))
    away_D = point_D - task.optimum().double()
    torch.testing.assert_close(gradient_D, task.curvature().double() * away_D)
    assert loss == pytest.approx(float(0.5 * (task.curvature().double() * away_D**2).sum()))


def test_the_gradients_expectation_and_noise_are_as_promised() -> None:
    task = Quadratic(dimension=100, noise=0.5)
    problem = Problem(task, dtype=torch.float64)
    point_D = torch.full((100,), 0.1, dtype=torch.float64)
    _, gradients_PD = problem.gradients(point_D, [problem.batch(derive(9, k)) for k in range(2000)])
    expected_D = task.curvature().double() * (point_D - task.optimum().double())
    noise_PD = gradients_PD - expected_D
    # One coordinate's noise has deviation 0.05; its mean over 2000 draws 0.0011, so 5 deviations are 0.0056.
    assert float(noise_PD.mean(dim=0).abs().max()) < 0.0056
    assert float(noise_PD.square().sum(dim=1).mean().sqrt()) == pytest.approx(0.5, rel=0.01)


def test_sgd_converges_to_near_the_optimum() -> None:
    task = Quadratic(dimension=100, noise=0.1)
    problem = Problem(task)
    optimizer = SGD()
    point_D = problem.initial(0)
    state = optimizer.start(point_D)
    for step in range(300):
        _, gradient_D = problem.gradient(point_D, problem.batch(derive(1, step)))
        point_D, state = optimizer.update(point_D, gradient_D, state, 0.05 if step < 200 else 0.005)
    evaluated = problem.evaluate(point_D)
    assert evaluated["distance"] < 0.05
    assert evaluated["loss"] < 1e-3


@pytest.mark.parametrize("options", [{"dimension": 0}, {"condition": 0.5}, {"noise": -1.0}])
def test_options_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="needs dimension ≥ 1, condition ≥ 1 and noise ≥ 0"):
        Quadratic(**options)
