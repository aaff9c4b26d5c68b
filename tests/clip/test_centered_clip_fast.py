"""The fast CenteredClip: its residual is as small as it must be, and never larger than it says.

The residual is recomputed by `oracle.py` in extended precision. Two promises are checked in every case: the true
residual is at most an eighth of the tolerance, and `ClippedCenter.residual` is not below the true one.
"""

import inspect
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.clip.oracle import clipped_norms, distances, gaussian_rows, norm, true_residual
from troth.clip import fast, kernels
from troth.clip.centered_clip import centered_clip_published, clip_residual, residual_tolerance
from troth.clip.exact import AggregationError
from troth.clip.fast import ClippedCenter, centered_clip, solve_centered_clip

# P peers, D coordinates

DTYPES = [torch.float32, torch.float64]


def with_liars(factor: float, width: int = 1000, peers: int = 16, liars: int = 7, seed: int = 1) -> Tensor:
    rows_PD = gaussian_rows(seed, peers, width)
    rows_PD[1 : 1 + liars] *= factor
    return rows_PD


def mirrored() -> Tensor:
    half_PD = gaussian_rows(2, 8, 1000)
    return torch.cat([half_PD, -half_PD])


def misleading() -> Tensor:
    """Liars who are the very centre in every fourth coordinate, which is where the solver looks, and huge elsewhere."""
    rows_PD = with_liars(1e6, width=4 * 4096)
    rows_PD[1:8, ::4] = 0.0
    return rows_PD


def colluding() -> Tensor:
    rows_PD = gaussian_rows(3, 16, 100)
    rows_PD[:7] = 1e5 * rows_PD[0]
    return rows_PD


Case = tuple[Callable[[], Tensor], float]  # rows and radius

CASES: dict[str, Case] = {
    "7 of 16 times −1e3": (lambda: with_liars(-1e3), 30.0),
    "7 of 16 times −1e8": (lambda: with_liars(-1e8), 30.0),
    "7 of 16 times 1e30": (lambda: with_liars(1e30), 30.0),
    "7 of 16 times 1e-30": (lambda: with_liars(1e-30), 30.0),
    "7 of 16 in one place": (colluding, 5.0),
    "misled by the sample": (misleading, 100.0),
    "every row clipped": (lambda: gaussian_rows(4, 16, 1000), 0.05),
    "no row clipped": (lambda: gaussian_rows(4, 16, 1000), 1000.0),
    "far from zero": (lambda: gaussian_rows(5, 16, 100) + 100.0, 5.0),
    "mirrored, some clipped": (mirrored, 31.6),
    "mirrored, all clipped": (mirrored, 0.05),
    "all zero": (lambda: torch.zeros(16, 10), 1.0),
    "zero but for one": (lambda: torch.cat([torch.zeros(15, 10), torch.ones(1, 10)]), 1.0),
    "equal but for one": (lambda: torch.cat([torch.ones(15, 10), 50 * torch.ones(1, 10)]), 1.0),
    "two groups on a line": (lambda: torch.tensor([[-10.0], [-9.0], [9.0], [10.0]]), 1.0),
    "one row": (lambda: gaussian_rows(6, 1, 1000), 1.0),
    "two rows": (lambda: gaussian_rows(6, 2, 1000), 1.0),
    "two rows unlike": (lambda: with_liars(-1e3, peers=2, liars=1), 30.0),
    "three rows": (lambda: gaussian_rows(6, 3, 1000), 1.0),
    "three rows, one liar": (lambda: with_liars(-1e8, peers=3, liars=1), 10.0),
    "1 coordinate": (lambda: with_liars(-1e3, width=1), 1.0),
    "2 coordinates": (lambda: with_liars(-1e3, width=2), 1.0),
    "10 coordinates": (lambda: with_liars(-1e3, width=10), 3.0),
    "300000 coordinates": (lambda: with_liars(-1e3, width=300_000), 500.0),
    "64 rows": (lambda: with_liars(-1e3, width=500, peers=64, liars=31), 20.0),
}


def assert_not_below_the_truth(rows_PD: Tensor, tau: float, found: ClippedCenter) -> None:
    """Up to what float64 itself loses in adding up a point or a residual of this size."""
    slack = 2.0**-50 * (clipped_norms(rows_PD, found.value_D, tau) + len(rows_PD) * norm(found.value_D))
    assert true_residual(rows_PD, found.value_D, tau) <= found.residual + slack


def assert_solved(rows_PD: Tensor, tau: float, found: ClippedCenter) -> None:
    away = [float(distance) for distance in distances(rows_PD, found.value_D)]
    tolerance = residual_tolerance(norm(found.value_D), away, tau=tau, size=rows_PD.shape[1])
    assert true_residual(rows_PD, found.value_D, tau) <= tolerance / 8
    assert found.residual <= found.tolerance / 8
    assert found.tolerance == pytest.approx(
        tolerance, rel=1e-3, abs=0
    )  # the solver's distances are those before rounding
    assert_not_below_the_truth(rows_PD, tau, found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_solved_to_an_eighth_of_the_tolerance(case: str, dtype: torch.dtype) -> None:
    make, tau = CASES[case]
    rows_PD = make().to(dtype)
    found = solve_centered_clip(rows_PD, tau=tau)
    assert found.value_D.dtype == dtype
    assert_solved(rows_PD, tau, found)
    assert torch.equal(centered_clip(rows_PD, tau=tau), found.value_D)


@pytest.mark.parametrize("case", CASES)
def test_reference_residual_is_the_true_one(case: str) -> None:
    """`clip_residual`, the checker's formula, against extended precision: at the centre, and away from it."""
    make, tau = CASES[case]
    rows_PD = make().float()
    center_D = centered_clip(rows_PD, tau=tau)
    for v_D in (center_D, center_D + tau / rows_PD.shape[1] ** 0.5):
        slack = 2.0**-44 * clipped_norms(rows_PD, v_D, tau)
        assert abs(norm(clip_residual(rows_PD, v_D, tau=tau)) - true_residual(rows_PD, v_D, tau)) <= slack


def test_the_cases_are_what_they_say() -> None:
    found = {case: (make(), tau, solve_centered_clip(make(), tau=tau)) for case, (make, tau) in CASES.items()}
    clipped = {case: distances(rows_PD, at.value_D) > tau for case, (rows_PD, tau, at) in found.items()}
    assert clipped["every row clipped"].all()
    assert clipped["mirrored, all clipped"].all()
    assert not clipped["no row clipped"].any()
    assert 0 < clipped["mirrored, some clipped"].sum() < 16
    assert clipped["7 of 16 times 1e30"].sum() >= 7
    assert found["misled by the sample"][2].reads > 2, "the liars were not taken as the reference"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("peers", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("tau", [1e-6, 1.0, 1e6])
def test_equal_rows_come_back_bit_for_bit(peers: int, tau: float, dtype: torch.dtype) -> None:
    row_D = gaussian_rows(7, 1, 1000, dtype)[0]
    found = solve_centered_clip(row_D.repeat(peers, 1), tau=tau)
    assert torch.equal(found.value_D, row_D)
    assert found.residual == 0.0
    assert found.reads == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows_give_zero(dtype: torch.dtype) -> None:
    found = solve_centered_clip(torch.zeros(16, 100, dtype=dtype), tau=1.0)
    assert torch.equal(found.value_D, torch.zeros(100, dtype=dtype))
    assert found.residual == 0.0
    assert found.tolerance == 16 * 10 * 2.0**-125  # room for numbers that float32 cannot hold


@pytest.mark.parametrize("dtype", DTYPES)
def test_mirrored_rows_meet_at_zero(dtype: torch.dtype) -> None:
    """All sixteen rows are inside the radius, so the residual grows sixteenfold with the distance from zero."""
    rows_PD = (0.01 * mirrored()).to(dtype)
    found = solve_centered_clip(rows_PD, tau=1.0)
    assert norm(found.value_D) <= 2.0**-43 * clipped_norms(rows_PD, found.value_D, 1.0) / 16


@pytest.mark.parametrize("offset", [1e4, 1e6])
@pytest.mark.parametrize("tau", [0.01, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_solved_however_far_from_zero(offset: float, tau: float, dtype: torch.dtype) -> None:
    """‖v‖ is up to 10⁹ τ: rounding v to float32 moves it by more than the radius, and the tolerance knows."""
    rows_PD = (gaussian_rows(8, 16, 100) + offset).to(dtype)
    assert_solved(rows_PD, tau, solve_centered_clip(rows_PD, tau=tau))


@pytest.mark.parametrize("width", [10, 1000, 100_000])
@pytest.mark.parametrize("factor", [1.0, -1e3, 1e8])
def test_two_reads_however_many_iterations(width: int, factor: float) -> None:
    """The work beside the two reads is on P×P numbers: a hard case costs iterations, not reads."""
    rows_PD = with_liars(factor, width=width).float()
    found = [solve_centered_clip(rows_PD, tau=share * width**0.5) for share in (0.05, 0.3, 1.0, 10.0)]
    assert {center.reads for center in found} == {2}
    assert len({center.iterations for center in found}) > 1


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def assert_bits_do_not_depend_on_threads(rows_PD: Tensor, tau: float) -> None:
    found = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        found.append(solve_centered_clip(rows_PD, tau=tau))
    for other in found[1:]:
        assert torch.equal(found[0].value_D, other.value_D)
        assert (found[0].residual, found[0].iterations) == (other.residual, other.iterations)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [10, 1000, 300_000])
def test_bits_do_not_depend_on_the_number_of_threads(width: int, dtype: torch.dtype) -> None:
    assert_bits_do_not_depend_on_threads(with_liars(-1e3, width=width).to(dtype), width**0.5)


def test_no_sum_is_left_to_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS splits sums among as many threads as it likes; on this machine it may happen not to, so they are refused."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a product by BLAS")

    for name in ("mm", "mv", "matmul", "dot"):
        monkeypatch.setattr(torch, name, refuse)
    for name in ("__matmul__", "mm", "mv", "matmul"):
        monkeypatch.setattr(Tensor, name, refuse)
    for name in ("dot", "matmul", "vdot", "inner"):
        monkeypatch.setattr(np, name, refuse)
    assert " @ " not in inspect.getsource(fast)
    rows_PD = with_liars(-1e3, width=40_000).float()
    assert solve_centered_clip(rows_PD, tau=200.0).residual > 0
    monkeypatch.setattr(kernels, "compiled", lambda _: False)
    assert solve_centered_clip(rows_PD, tau=200.0).residual > 0


# ------------------------------------------------------------------------------------------ against the published loop


@st.composite
def rows_and_radius(draw: st.DrawFn) -> tuple[Tensor, float]:
    """Few rows of very different lengths in few dimensions, duplicates and zero rows among them."""
    peers, width = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    entries = st.lists(st.floats(-8, 8, allow_subnormal=False), min_size=width, max_size=width)
    rows_PD = torch.tensor(draw(st.lists(entries, min_size=peers, max_size=peers)), dtype=torch.float64)
    rows_PD[rows_PD.abs() < 1e-6] = 0.0
    liars = draw(st.integers(0, (peers - 1) // 2))
    rows_PD[:liars] *= draw(st.sampled_from([1.0, -1e3, 1e8, -1e20]))
    return rows_PD, draw(st.sampled_from([0.25, 1.0, 4.0, 30.0]))


@pytest.mark.long
@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows_and_radius())
def test_fast_is_where_the_published_loop_ends(drawn: tuple[Tensor, float]) -> None:
    """The bound on their distance follows from the residuals.

    The k rows that both points have within τ are within τ of every point between them, so along the way the residual
    changes by at least k times the distance gone: `‖a − b‖ ≤ (‖R(a)‖ + ‖R(b)‖)/k`. For the fast solver R is what it
    promises, an eighth of the tolerance. With k = 0 there may be many centres; then the residual alone decides.
    """
    rows_PD, tau = drawn
    found = solve_centered_clip(rows_PD, tau=tau)
    assert_not_below_the_truth(rows_PD, tau, found)
    assert found.residual <= found.tolerance / 8
    loop_D = centered_clip_published(rows_PD, tau=tau, iterations=3000, stop=1e-15)
    within_both = (distances(rows_PD, found.value_D) <= tau) & (distances(rows_PD, loop_D) <= tau)
    if within_both.any():
        residuals = found.tolerance / 8 + true_residual(rows_PD, loop_D, tau)
        assert norm(found.value_D - loop_D) <= residuals / within_both.sum() + 1e-14


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    peers=st.integers(1, 20),
    width=st.integers(1, 300),
    scale=st.sampled_from([-1.0, 10.0, -1e3, 1e8, -1e20, 1e30]),
    spread=st.sampled_from([0.02, 0.5, 1.0, 10.0]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_gaussian_rows_with_any_liars(
    seed: int, peers: int, width: int, scale: float, spread: float, dtype: torch.dtype
) -> None:
    rows_PD = with_liars(scale, width=width, peers=peers, liars=(peers - 1) // 2, seed=seed).to(dtype)
    tau = spread * width**0.5
    assert_solved(rows_PD, tau, solve_centered_clip(rows_PD, tau=tau))


# -------------------------------------------------------------------------------------------------------- known faults
# Each says what should hold. Strict: whoever mends the code must take the mark off.


@pytest.mark.parametrize("dtype", DTYPES)
def test_mirrored_liars_around_zero_rows(dtype: torch.dtype) -> None:
    """Honest rows are zero, two liars nearly cancel: the solver stops at zero, beyond the *whole* tolerance."""
    rows_PD = torch.zeros(5, 2, dtype=dtype)
    rows_PD[3:, 0] = torch.tensor([1.0, -1.0])
    rows_PD[3:, 1] = torch.tensor([2.0**-10, -(2.0**-10) * (1 + 2.0**-23)])
    assert_solved(rows_PD, 0.1, solve_centered_clip(rows_PD, tau=0.1))


def test_bound_includes_the_rounding_of_float64() -> None:
    rows_PD = gaussian_rows(8, 16, 100) + 1e6
    found = solve_centered_clip(rows_PD, tau=1000.0)
    assert true_residual(rows_PD, found.value_D, 1000.0) <= found.residual


def test_bound_holds_where_rounding_is_longer_than_the_radius() -> None:
    rows_PD = torch.tensor(
        [
            [202388.171875, -2441556.5],
            [202387.25, -2441556.5],
            [202385.921875, -2441556.25],
            [-202387248.0, 2441556480.0],
        ],
        dtype=torch.float32,
    )
    assert_not_below_the_truth(rows_PD, 0.0225861348, solve_centered_clip(rows_PD, tau=0.0225861348))


@pytest.mark.parametrize("tau", [1e-160, 1e200])
def test_a_radius_whose_square_is_no_number_is_refused(tau: float) -> None:
    with pytest.raises(AggregationError, match="tau must be within"):
        solve_centered_clip(gaussian_rows(9, 16, 10), tau=tau)
