"""Problems of known class: their gradients, their minimum, their noise."""

import pytest
import torch

from troth.crypto import derive, stream
from troth.training import Problem, make_task
from troth.training.tasks.synthetic import Convex, NonConvex, StronglyConvex, Synthetic

KINDS: list[type[Synthetic]] = [NonConvex, Convex, StronglyConvex]


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_function(kind: type[Synthetic]) -> None:
    task = kind(dimension=40)
    x_D = torch.linspace(-3, 3, 40, dtype=torch.float64, requires_grad=True)
    (expected_D,) = torch.autograd.grad(task.value(x_D), x_D)
    torch.testing.assert_close(task.slope(x_D.detach()), expected_D)


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_changes_the_gradient_by_more_than_its_length(kind: type[Synthetic]) -> None:
    """Smoothness L = 1, which the step sizes of theory are made from."""
    task = kind(dimension=1000)
    x_D = torch.linspace(-4, 4, 1000, dtype=torch.float64)
    steepest = float((task.slope(x_D + 1e-3) - task.slope(x_D)).abs().max()) / 1e-3
    assert 0.9 < steepest < 1 + 1e-9


def test_one_is_not_convex_one_is_flat_at_its_minimum_one_is_neither() -> None:
    far_D, near_D = torch.full((4,), 2.0), torch.full((4,), 1e-2)
    assert bool((NonConvex(4).slope(far_D) < NonConvex(4).slope(far_D / 2)).all()), "the slope falls off"
    assert float((Convex(4).slope(near_D) / near_D).max()) < 1e-4
    assert float((StronglyConvex(4, condition=8.0).slope(near_D) / near_D).min()) == pytest.approx(1 / 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_starts_where_it_says_and_the_metrics_are_exact(kind: type[Synthetic]) -> None:
    problem = Problem(kind(dimension=16, start=2.0))
    first_D = problem.initial(0)
    torch.testing.assert_close(first_D, torch.full((16,), 0.5))
    metrics = problem.evaluate(first_D)
    assert metrics["distance"] == pytest.approx(2.0)
    assert metrics["loss"] == pytest.approx(float(problem.task.value(first_D.double())))  # type: ignore[attr-defined]
    assert problem.evaluate(torch.zeros(16)) == {"loss": 0.0, "gradient": 0.0, "distance": 0.0}


def test_gaussian_noise_has_mean_zero_and_norm_sigma() -> None:
    noise_PD = _noise(NonConvex(dimension=50, noise=3.0), 3000)
    assert float(noise_PD.square().sum(dim=1).mean().sqrt()) == pytest.approx(3.0, rel=0.01)
    # A coordinate has deviation 3/√50; its mean over 3000 draws 0.0077, so 5 deviations are 0.039.
    assert float(noise_PD.mean(dim=0).abs().max()) < 0.039


def test_the_gradient_is_the_slope_and_the_noise() -> None:
    task = Convex(dimension=20, noise=0.5)
    problem, x_D = Problem(task), torch.linspace(-2, 2, 20)
    batch = problem.batch(derive(3))
    _, gradient_D = problem.gradient(x_D, batch)
    torch.testing.assert_close(gradient_D, task.slope(x_D) + batch["noise"])


@pytest.mark.long
def test_heavy_noise_has_mean_norm_sigma_and_no_variance() -> None:
    """ρ = u^(−3/4)/4 exceeds r with probability (4r)^(−4/3)."""
    lengths = _noise(NonConvex(dimension=50, noise=2.0, tail="heavy"), 20_000).norm(dim=1) / 2.0
    for r in (1.0, 4.0, 16.0):
        expected = (4 * r) ** (-4 / 3)
        assert float((lengths > r).float().mean()) == pytest.approx(expected, rel=5 / (20_000 * expected) ** 0.5)
    gaussian = _noise(NonConvex(dimension=50, noise=2.0), 20_000).norm(dim=1) / 2.0
    assert float(lengths.square().mean()) > 10 * float(gaussian.square().mean())


def _noise(task: Synthetic, count: int) -> torch.Tensor:
    return torch.stack([task.batch(stream(7, k))["noise"] for k in range(count)]).double()


@pytest.mark.parametrize("name", ["non-convex", "convex", "strongly-convex"])
def test_by_name_with_a_clipped_gradient(name: str) -> None:
    """BTARD-Clipped-SGD is one of these with `clip_norm`."""
    problem = Problem(make_task(f"{name}:dimension=8,noise=5,tail=heavy,clip_norm=0.5"))
    _, gradients_PD = problem.gradients(problem.initial(0), [problem.batch(derive(k)) for k in range(20)])
    assert float(gradients_PD.norm(dim=1).max()) <= 0.5 + 1e-6


@pytest.mark.parametrize("options", [{"dimension": 0}, {"noise": -1.0}, {"start": -1.0}, {"tail": "thin"}])
def test_options_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"needs dimension ≥ 1|tail is one of gaussian, heavy"):
        NonConvex(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="condition is at least 1"):
        StronglyConvex(condition=0.5)
