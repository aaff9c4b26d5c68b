"""CenteredClip for whatever rows there are: its mathematics, and an adversary that has read both solvers."""

import math
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.clip.hostile_rows import KINDS, draw_rows
from tests.clip.oracle import gaussian_rows
from troth.clip import centered_clip, fast
from troth.clip.centered_clip import _Pulls, judge_center, solve_for_any_rows
from troth.clip.exact import Floats
from troth.clip.fast import acquitted_center, solve_centered_clip

# P rows, D coordinates, N coordinates in the span of the rows

CLUSTERS_D = 50


def clusters(apart: float, jitter: float) -> Tensor:
    """Two groups of eight rows, so many radii apart and nearly on a line: plain descent is 4,000 tolerances off after 30,000
    rounds."""
    rows_PD: Tensor = jitter * gaussian_rows(1, 16, CLUSTERS_D).double()
    rows_PD[:8, 0] += apart
    return rows_PD.float()


def spiked(size: float, width: int = 300) -> Tensor:
    """Fifteen ordinary rows, and the mean of nine with one huge number where the fast solver's sample does not look."""
    rows_PD = (gaussian_rows(2, 16, width) / math.sqrt(width)).float()
    rows_PD[4] = rows_PD[7:].mean(0)
    rows_PD[4, 1] = size
    return rows_PD


def assert_acquitted(rows_PD: Tensor, tau: float, share: float = 1 / 2) -> None:
    value_D, residual, tolerance = solve_for_any_rows(rows_PD, tau=tau)
    assert (residual, tolerance) == judge_center(rows_PD, value_D, tau=tau)
    assert residual <= share * tolerance


@pytest.mark.parametrize("size", [1e6, 1e8, 1e10, 1e15, 1e20, 1e30, 3.4e38])
@pytest.mark.parametrize("tau", [0.01, 0.3, 1.0, 30.0])
def test_a_spike_where_the_sample_does_not_look(size: float, tau: float) -> None:
    """[A7] One number of 10¹⁰ had three to six honest owners banned in a step."""
    rows_PD = spiked(size)
    assert_acquitted(rows_PD, tau, 1 / 8)
    found = solve_centered_clip(rows_PD, tau=tau)
    assert found.residual <= found.tolerance / 8
    assert found.reads <= 6, "around zero, which no liar chooses, it is an ordinary problem"
    assert acquitted_center(rows_PD, tau=tau) is not None


@pytest.mark.parametrize("apart", [3.0, 100.0, 1e4, 1e8, 1e20])
@pytest.mark.parametrize("jitter", [0.0, 1e-8, 1e-3, 1.0])
def test_two_clusters_nearly_on_a_line(apart: float, jitter: float) -> None:
    assert_acquitted(clusters(apart, jitter), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 1000, 5000])
@pytest.mark.parametrize("tau", [1e-6, 1e-2, 1.0, 1e6])
def test_ordinary_rows_of_any_width(width: int, tau: float, dtype: torch.dtype) -> None:
    rows_PD = gaussian_rows(3, 16, width).to(dtype)
    rows_PD[:7] *= -1e3
    assert_acquitted(rows_PD, tau)


@pytest.mark.parametrize("peers", [1, 2, 3, 64])
def test_any_number_of_rows(peers: int) -> None:
    assert_acquitted(gaussian_rows(4, peers, 40).float(), 2.0, 1 / 8)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_an_adversary_that_knows_the_code(kind: str) -> None:
    """[A7] Some of each kind; `python -m tests.clip.hunt` tries millions."""
    for seed in range(40):
        rows_PD, tau = draw_rows(kind, seed)
        assert_acquitted(rows_PD, tau, 1.0)
        found = solve_centered_clip(rows_PD, tau=tau)
        residual, tolerance = judge_center(rows_PD, found.value_D, tau=tau)
        assert residual <= tolerance, (kind, seed)


def test_the_fast_solver_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows around which each step of it gained one more ulp, for hours: found after 54,472 others."""
    rows_PD, tau = draw_rows("equal", 54_472)
    iterate, calls = fast._iterate, count()

    def counted(*arguments: Any) -> Any:
        assert next(calls) < 10_000, "it goes on for ever"
        return iterate(*arguments)

    monkeypatch.setattr(fast, "_iterate", counted)
    monkeypatch.setattr(fast, "_MOST_STALLS", 12)  # with fewer it gives these up, and others may last
    found = solve_centered_clip(rows_PD, tau=tau)
    assert found.iterations <= 3 * 50
    assert found.residual <= found.tolerance / 2


def test_without_the_way_around_zero_and_the_slow_one_honest_owners_would_be_convicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the tests above can fail."""
    monkeypatch.setattr("troth.clip.fast._MOST_ROUNDS", 1)
    rows_PD = spiked(1e10)
    slow = solve_centered_clip(rows_PD, tau=0.3)
    assert slow.residual <= slow.tolerance / 8
    fails = "troth.clip.fast.solve_for_any_rows"
    monkeypatch.setattr(fails, lambda rows_PD, **_: (rows_PD[4], math.inf, 1.0))
    wrong = solve_centered_clip(rows_PD, tau=0.3)
    residual, tolerance = judge_center(rows_PD, wrong.value_D, tau=0.3)
    assert residual > tolerance
    assert acquitted_center(rows_PD, tau=0.3) is None, "its owner says that it has none"


# ------------------------------------------------------------------------------------------------------- the mathematics


distances = st.floats(1e-12, 1e12) | st.sampled_from([0.0, 1.0, 1.0 - 2**-53, 1.0 + 2**-52])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(distances, st.floats(-30, 3).map(lambda power: 10.0**power))
def test_a_pull_solves_its_equation_and_is_near_the_clipped_one(distance: float, barrier: float) -> None:
    """`ρ·(1 + 2μ/(1 − ρ²)) = r`, and `min(r, 1) − √(2μ) ≤ ρ ≤ min(r, 1)`."""
    pulls = _Pulls(np.array([[distance]]), np.zeros(1), barrier)
    (strength,) = pulls.strengths
    assert 0 <= strength <= min(distance, 1.0)
    assert min(distance, 1.0) - strength <= math.sqrt(2 * barrier) * (1 + 1e-9)
    (gap,) = pulls.short
    beyond, most = abs(distance - 1), min(distance, 1.0)
    left, right = gap * (beyond + gap) * (1 + most - gap), 2 * barrier * (most - gap)
    assert abs(left - right) <= 1e-6 * max(right, 1e-300) or most - gap <= 1e-12 * most


@pytest.mark.parametrize("barrier", [1e-9, 1e-3, 1.0, 100.0])
def test_newtons_step_is_that_of_the_derivative(barrier: float) -> None:
    """Against a difference quotient: `H·step = pull`, with H the derivative of minus the pull."""
    rows_PN = gaussian_rows(5, 9, 4).double().numpy()
    at_N = np.full(4, 0.1)
    here = _Pulls(rows_PN, at_N, barrier)
    small, step_N = 1e-6, here.step()
    bent_N = (here.moved(-small * step_N).pull - here.moved(small * step_N).pull) / (2 * small)
    np.testing.assert_allclose(bent_N, here.pull, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_takes_few_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof allows `n·(1/θ − 1 + log θ)/0.0268` damped steps of each stage and a few of Newton's; twenty are many."""
    taken: list[int] = []
    newton, step = centered_clip._newton, _Pulls.step

    def counted(rows_PN: Floats, at_N: Floats, barrier: float) -> Floats:
        taken.append(0)
        return newton(rows_PN, at_N, barrier)

    def one(self: _Pulls) -> Floats:
        taken[-1] += 1
        return step(self)

    monkeypatch.setattr(centered_clip, "_newton", counted)
    monkeypatch.setattr(_Pulls, "step", one)
    for seed in range(15):
        rows_PD, tau = draw_rows(kind, seed)
        solve_for_any_rows(rows_PD, tau=tau)
    assert taken
    assert max(taken) < centered_clip._MOST_STEPS, "no stage was broken off"


def test_coordinates_keep_lengths_and_differences() -> None:
    """Each row's as exact as its own length allows, beside others that are 10³⁰ times as long."""
    rows_PD = gaussian_rows(6, 5, 3000).numpy().astype(np.float32)
    rows_PD[0] *= np.float32(1e30)
    rows_PN = centered_clip._coordinates(rows_PD, np.zeros(3000, np.float32))
    assert rows_PN.shape == (5, 5)
    wide_PD = rows_PD.astype(np.float64)
    for one in range(1, 5):
        for other in range(one):
            away = math.sqrt(math.fsum(((wide_PD[one] - wide_PD[other]) ** 2).tolist()))
            assert np.linalg.norm(rows_PN[one] - rows_PN[other]) == pytest.approx(away, rel=1e-13)
