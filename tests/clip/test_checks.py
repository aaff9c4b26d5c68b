"""What no rule accepts, and that the message says which row or parameter is at fault."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.clip.bound_rules import bind_rule
from tests.clip.oracle import gaussian_rows
from troth.clip.centered_clip import centered_clip_published, clip_weights, residual_tolerance
from troth.clip.exact import AggregationError, check_vectors
from troth.clip.fast import centered_clip, solve_centered_clip
from troth.workshop.rules.memoryless import geometric_median, krum, multi_krum, trimmed_mean
from troth.workshop.rules.table import RULES

# P peers, D coordinates

PEERS = 8
DTYPES = [torch.float32, torch.float64]
NOT_FINITE = [math.nan, math.inf, -math.inf]


def apply(name: str, vectors_PD: Tensor) -> Tensor:
    return bind_rule(RULES[name], byzantine=1 if name == "bulyan" else 2, tau=1.0)(vectors_PD)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", RULES)
def test_a_row_that_is_not_finite_is_named(name: str, value: float, dtype: torch.dtype) -> None:
    rows_PD = gaussian_rows(1, PEERS, 10, dtype)
    rows_PD[3, 7] = value
    with pytest.raises(AggregationError, match="row 3 is not finite"):
        apply(name, rows_PD)


@pytest.mark.parametrize("name", RULES)
def test_all_rows_that_are_not_finite_are_listed(name: str) -> None:
    rows_PD = gaussian_rows(2, PEERS, 10)
    rows_PD[2, 0], rows_PD[5, 9], rows_PD[6, 1] = NOT_FINITE
    with pytest.raises(AggregationError, match=r"row 2 is not finite \(bad rows: \[2, 5, 6\]\)"):
        apply(name, rows_PD)


@pytest.mark.parametrize("name", RULES)
def test_nothing_finite_at_all(name: str) -> None:
    with pytest.raises(AggregationError, match="row 0 is not finite"):
        apply(name, torch.full((PEERS, 10), math.nan))


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bad_reference_is_named_by_the_fast_solver(dtype: torch.dtype, value: float) -> None:
    """It looks at a sample of coordinates to choose its reference: here every second, in which row 3 is in the middle.

    The bad entry is in between, so that *every* difference from the reference is spoilt, not those of row 3 alone.
    """
    rows_PD = gaussian_rows(3, PEERS, 2 * 4096, dtype)
    rows_PD[3] = 0.0
    rows_PD[3, 1] = value
    with pytest.raises(AggregationError, match=r"row 3 is not finite \(bad rows: \[3\]\)"):
        solve_centered_clip(rows_PD, tau=1.0)


@pytest.mark.parametrize("name", RULES)
def test_large_finite_float32_rows_are_accepted(name: str) -> None:
    """1e38 squared is no float32, but a good row all the same: refusing it would let a liar stop the training."""
    rows_PD = gaussian_rows(4, PEERS, 10, torch.float32)
    rows_PD[3] = 1e38
    assert bool(torch.isfinite(apply(name, rows_PD)).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
@pytest.mark.parametrize("name", RULES)
def test_other_number_formats_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(AggregationError, match=f"expected float32 or float64, got {dtype}"):
        apply(name, torch.ones(PEERS, 10).to(dtype))


@pytest.mark.parametrize("name", [*RULES, "published"])
def test_what_is_no_tensor_is_refused_with_the_way_out(name: str) -> None:
    """NumPy's float32 is another type than PyTorch's, with the same name."""
    rows_PD: Any = gaussian_rows(1, PEERS, 10, torch.float32)
    rule = partial(apply, name) if name in RULES else partial(centered_clip_published, tau=1.0)
    with pytest.raises(AggregationError, match=r"for each peer, got numpy.ndarray: use torch.from_numpy\(…\)"):
        rule(rows_PD.numpy())
    for rows in (rows_PD.tolist(), list(rows_PD)):
        with pytest.raises(
            AggregationError, match=r"got list: use torch.stack\(…\) of tensors, torch.tensor\(…\) of numb"
        ):
            rule(rows)


@pytest.mark.parametrize("shape", [(), (10,), (PEERS, 10, 1), (0, 10), (PEERS, 0), (0, 0)])
@pytest.mark.parametrize("name", RULES)
def test_other_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(AggregationError, match="expected a P×D matrix") as raised:
        apply(name, torch.zeros(shape))
    assert str(shape) in str(raised.value)


@pytest.mark.parametrize("byzantine", [-1, 4, 8, 100])
def test_trimmed_mean_leaves_something(byzantine: int) -> None:
    with pytest.raises(
        AggregationError, match=f"trimmed-mean over 8 rows takes byzantine from 0 to 3, got {byzantine}"
    ):
        trimmed_mean(gaussian_rows(5, PEERS, 10), byzantine=byzantine)


def test_trimmed_mean_of_odd_rows_may_leave_one() -> None:
    rows_PD = torch.tensor([[5.0], [1.0], [-7.0], [3.0], [100.0]])
    assert trimmed_mean(rows_PD, byzantine=2).tolist() == [3.0]


@pytest.mark.parametrize("byzantine", [-1, 6, 8, 100])
def test_krum_needs_a_neighbour(byzantine: int) -> None:
    with pytest.raises(AggregationError, match=f"krum over 8 rows takes byzantine from 0 to 5, got {byzantine}"):
        krum(gaussian_rows(6, PEERS, 10), byzantine=byzantine)


@pytest.mark.parametrize("byzantine", [-1, 6, 8, 100])
def test_multi_krum_needs_a_neighbour(byzantine: int) -> None:
    with pytest.raises(AggregationError, match="krum over 8 rows"):
        multi_krum(gaussian_rows(6, PEERS, 10), byzantine=byzantine)


@pytest.mark.parametrize("keep", [-1, 0, 9])
def test_multi_krum_keeps_what_there_is(keep: int) -> None:
    with pytest.raises(AggregationError, match=f"can keep 1 to 8 of them, got keep={keep}"):
        multi_krum(gaussian_rows(6, PEERS, 10), byzantine=1, keep=keep)


@pytest.mark.parametrize("peers", [1, 2])
def test_krum_of_too_few_rows(peers: int) -> None:
    for rule in (krum, multi_krum):
        with pytest.raises(AggregationError, match=f"krum needs more than {peers} rows"):
            rule(gaussian_rows(7, peers, 10), byzantine=0)


@pytest.mark.parametrize("tau", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
def test_the_radius_is_positive_and_finite(tau: float) -> None:
    for rule in (centered_clip, centered_clip_published, solve_centered_clip):
        with pytest.raises(AggregationError, match=f"tau must be a positive finite number, got {tau}"):
            rule(gaussian_rows(8, PEERS, 10), tau=tau)


@pytest.mark.parametrize(("tolerance", "iterations"), [(0.0, 10), (-1e-3, 10), (math.nan, 10), (1e-3, 0), (1e-3, -5)])
def test_geometric_median_needs_an_end(tolerance: float, iterations: int) -> None:
    with pytest.raises(AggregationError, match="tolerance must be positive and iterations at least 1"):
        geometric_median(gaussian_rows(9, PEERS, 10), tolerance=tolerance, iterations=iterations)


@pytest.mark.parametrize("liars", [1, 3, PEERS])
def test_entries_that_cannot_be_squared_are_refused(liars: int) -> None:
    """float64 only: the squares of float32 numbers always fit. A liar's row must not come out as garbage."""
    rows_PD = gaussian_rows(10, PEERS, 10)
    rows_PD[:liars] *= 1e200
    with pytest.raises(AggregationError, match="cannot be squared: scale the vectors down"):
        centered_clip(rows_PD, tau=1.0)


def test_good_vectors_pass() -> None:
    for dtype in DTYPES:
        check_vectors(torch.finfo(dtype).max * torch.ones(1, 1, dtype=dtype))
        check_vectors(gaussian_rows(11, PEERS, 10, dtype))


def test_every_rule_is_bound_to_what_it_needs() -> None:
    for name, entry in RULES.items():
        assert isinstance(entry, type) or set(entry.needs) <= {"byzantine", "tau"}, name
        assert entry.__doc__ if isinstance(entry, type) else entry.summary, name
    rows_PD = gaussian_rows(12, PEERS, 10)
    assert torch.equal(bind_rule(RULES["krum"], byzantine=3, tau=9.0)(rows_PD), krum(rows_PD, byzantine=3))
    assert torch.equal(
        bind_rule(RULES["centered-clip"], byzantine=3, tau=9.0)(rows_PD), centered_clip(rows_PD, tau=9.0)
    )


def test_clip_weights_at_the_corners() -> None:
    weights = clip_weights(torch.tensor([0.0, 1.0, 2.0, 8.0, math.inf]), 2.0)
    assert weights.tolist() == [1.0, 1.0, 1.0, 0.25, 0.0]


def test_residual_tolerance_by_hand() -> None:
    """[V2] ε = 2⁻²¹·‖v‖ + √d·2⁻¹²⁵, then what moving v by ε does to every pull, and what scalars lose."""
    assert residual_tolerance(1.0, [0.0] * 16, tau=1.0, size=1) == 2.0**-17  # the other ε is below its last place
    assert residual_tolerance(0.0, [0.0] * 16, tau=1.0, size=4) == 2.0**-120
    assert residual_tolerance(0.0, [0.5, 3.0], tau=1.0, size=1) == pytest.approx(1.5 * 2.0**-40, rel=1e-15)
    assert residual_tolerance(2.0**21, [9.0], tau=1.0, size=1) == pytest.approx(
        1 / 8, rel=1e-9
    )  # ε = 1: far rows turn less
    assert residual_tolerance(2.0**30, [9.0], tau=1.0, size=1) == pytest.approx(
        2.0, rel=1e-9
    )  # a pull turns round at most
    assert residual_tolerance(2.0**30, [2.0**30], tau=1.0, size=1) == pytest.approx(
        2.0**-21, rel=1e-5
    )  # no slack by length
