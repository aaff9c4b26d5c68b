"""What holds for every rule in the table: symmetry, equivariance, number formats, and its input left alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.clip.bound_rules import Rule, bind_rule
from tests.clip.oracle import gaussian_rows
from troth.clip.centered_clip import centered_clip_published
from troth.clip.fast import centered_clip
from troth.workshop.rules.memoryless import geometric_median, mean, median, trimmed_mean
from troth.workshop.rules.table import RULES

# P peers, D coordinates

PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32)
DTYPES = [torch.float32, torch.float64]

# How far two computations of the same point may be apart, relative to the rows. Rules that only select and average are
# exact to rounding; the geometric median stops at steps of 1e-10, the clipped centre at a residual of 2⁻²⁴·P·‖v‖.
WITHIN = dict.fromkeys(RULES, 1e-12) | {"geometric-median": 1e-8, "centered-clip": 2.0**-21}


def bound_rule(name: str, peers: int, tau: float) -> Rule:
    """With as many liars as leave Krum two neighbours to look at; with one, mutually nearest rows would tie."""
    most = (peers - 3) // 4 if name == "bulyan" else min((peers - 1) // 2, peers - 4)
    return bind_rule(RULES[name], byzantine=max(0, most), tau=tau)


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    """Rows of all lengths, so that a radius around the typical one clips some of them."""
    peers, width = draw(st.integers(4, 12)), draw(st.integers(1, 20))
    lengths = draw(st.lists(st.floats(0.1, 10), min_size=peers, max_size=peers))
    return gaussian_rows(draw(SEEDS), peers, width) * torch.tensor(lengths, dtype=torch.float64)[:, None]


# Rules that do not have a property, by their definition.
NOT_BY_ORDER = {
    "bucketing",
    "bulyan",
    "mda",
}  # buckets are drawn; ties go by the order of the rows (see `test_baselines`)
FROM_ZERO = {"rfa", "centered-clip-momentum"}  # iterations begin at zero, and are few
WITH_UNITS = {"rfa"}  # its smoothing has one
BY_EIGENVECTORS = {"caf"}  # LAPACK scales matrices as it likes, so the last bits of eigenvectors are its own


def radius(rows_PD: Tensor) -> float:
    """Twice the median length: most rows are inside it, so the clipped centre is one point and well conditioned."""
    return 2 * float(torch.linalg.vector_norm(rows_PD, dim=1).median())


def assert_near(name: str, ours_D: Tensor, other_D: Tensor, scale: float) -> None:
    torch.testing.assert_close(ours_D, other_D, rtol=0, atol=WITHIN[name] * scale)


@pytest.mark.parametrize("name", [name for name in RULES if name not in NOT_BY_ORDER])
@PROPERTY
@given(rows_PD=rows(), seed=SEEDS)
def test_order_of_rows_is_irrelevant(name: str, rows_PD: Tensor, seed: int) -> None:
    rule = bound_rule(name, len(rows_PD), radius(rows_PD))
    order = torch.randperm(len(rows_PD), generator=torch.Generator().manual_seed(seed))
    assert_near(name, rule(rows_PD[order]), rule(rows_PD), float(rows_PD.abs().max()))


@pytest.mark.parametrize("name", RULES)
@PROPERTY
@given(rows_PD=rows(), seed=SEEDS)
def test_order_of_coordinates_is_irrelevant(name: str, rows_PD: Tensor, seed: int) -> None:
    rule = bound_rule(name, len(rows_PD), radius(rows_PD))
    order = torch.randperm(rows_PD.shape[1], generator=torch.Generator().manual_seed(seed))
    assert_near(name, rule(rows_PD[:, order]), rule(rows_PD)[order], float(rows_PD.abs().max()))


@pytest.mark.parametrize("name", [name for name in RULES if name not in FROM_ZERO])
@PROPERTY
@given(rows_PD=rows(), seed=SEEDS, length=st.sampled_from([0.1, 1.0, 100.0]))
def test_translation_moves_the_aggregate_along(name: str, rows_PD: Tensor, seed: int, length: float) -> None:
    rule = bound_rule(name, len(rows_PD), radius(rows_PD))
    shift_D = length * gaussian_rows(seed, 1, rows_PD.shape[1])[0]
    scale = float(rows_PD.abs().max() + torch.linalg.vector_norm(shift_D))
    assert_near(name, rule(rows_PD + shift_D), rule(rows_PD) + shift_D, scale)


@pytest.mark.parametrize("name", [name for name in RULES if name not in WITH_UNITS])
@PROPERTY
@given(rows_PD=rows(), factor=st.floats(-1e6, 1e6).filter(lambda factor: abs(factor) > 1e-6))
def test_scaling_scales_the_aggregate(name: str, rows_PD: Tensor, factor: float) -> None:
    """For every rule, mirrored rows included, when the clipping radius is scaled along."""
    tau = radius(rows_PD)
    scaled_D = bound_rule(name, len(rows_PD), abs(factor) * tau)(factor * rows_PD)
    expected_D = factor * bound_rule(name, len(rows_PD), tau)(rows_PD)
    assert_near(name, scaled_D, expected_D, float(abs(factor) * rows_PD.abs().max()))


@pytest.mark.parametrize("name", [name for name in RULES if name not in WITH_UNITS | BY_EIGENVECTORS])
@PROPERTY
@given(rows_PD=rows(), exponent=st.integers(-60, 60))
def test_scaling_by_powers_of_two_is_exact(name: str, rows_PD: Tensor, exponent: int) -> None:
    """No constant with a unit hides in any rule: not even the last bit changes."""
    tau, factor = radius(rows_PD), 2.0**exponent
    scaled_D = bound_rule(name, len(rows_PD), factor * tau)(factor * rows_PD)
    assert torch.equal(scaled_D, factor * bound_rule(name, len(rows_PD), tau)(rows_PD))


@PROPERTY
@given(rows_PD=rows(), tau=st.floats(0.01, 100), iterations=st.integers(0, 30))
def test_published_loop_is_equivariant_too(rows_PD: Tensor, tau: float, iterations: int) -> None:
    """From a given start: its own, the lower of two medians, is not mirrored along."""
    start_D, shift_D = rows_PD[0], rows_PD[1]
    found_D = centered_clip_published(rows_PD, tau=tau, iterations=iterations, start_D=start_D)
    moved_D = centered_clip_published(
        -2 * rows_PD + shift_D, tau=2 * tau, iterations=iterations, start_D=-2 * start_D + shift_D
    )
    torch.testing.assert_close(moved_D, -2 * found_D + shift_D, rtol=0, atol=1e-11 * float(rows_PD.abs().max()))


@pytest.mark.parametrize("name", RULES)
@PROPERTY
@given(rows_PD=rows())
def test_aggregate_stays_between_the_rows(name: str, rows_PD: Tensor) -> None:
    """Every rule returns a point whose coordinates lie within the range of the rows' coordinates."""
    found_D = bound_rule(name, len(rows_PD), radius(rows_PD))(rows_PD)
    slack = WITHIN[name] * rows_PD.abs().max()
    assert bool((found_D >= rows_PD.amin(dim=0) - slack).all())
    assert bool((found_D <= rows_PD.amax(dim=0) + slack).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RULES)
def test_number_format_and_shape_follow_the_input(name: str, dtype: torch.dtype) -> None:
    found_D = bound_rule(name, 8, 3.0)(gaussian_rows(1, 8, 10, dtype))
    assert found_D.dtype == dtype
    assert found_D.shape == (10,)


@pytest.mark.parametrize("name", RULES)
def test_float32_agrees_with_float64(name: str) -> None:
    rows_PD = gaussian_rows(2, 8, 10, torch.float32)
    rule = bound_rule(name, 8, 3.0)
    torch.testing.assert_close(rule(rows_PD).double(), rule(rows_PD.double()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RULES)
def test_input_is_left_alone(name: str, dtype: torch.dtype) -> None:
    rows_PD = gaussian_rows(3, 8, 10, dtype)
    before_PD = rows_PD.clone()
    found_D = bound_rule(name, 8, 3.0)(rows_PD)
    found_D.zero_()  # the aggregate must not share memory with a row either
    assert torch.equal(rows_PD, before_PD)


@pytest.mark.parametrize("name", RULES)
def test_memory_layout_is_irrelevant(name: str) -> None:
    rows_PD = gaussian_rows(4, 8, 10)
    rule = bound_rule(name, 8, 3.0)
    spread_PD = torch.zeros(8, 30, dtype=torch.float64)[:, ::3].copy_(rows_PD)
    for strange_PD in (rows_PD.T.contiguous().T, spread_PD):
        assert not strange_PD.is_contiguous()
        assert_near(name, rule(strange_PD), rule(rows_PD), 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@PROPERTY
@given(seed=SEEDS, width=st.integers(1, 50), length=st.sampled_from([1e-20, 1.0, 1e20]))
def test_a_single_row_is_its_own_aggregate(dtype: torch.dtype, seed: int, width: int, length: float) -> None:
    """Krum and Multi-Krum are left out: they compare a row with at least one neighbour, and refuse fewer than three."""
    row_1D = (length * gaussian_rows(seed, 1, width)).to(dtype)
    for found_D in (
        mean(row_1D),
        median(row_1D),
        trimmed_mean(row_1D, byzantine=0),
        geometric_median(row_1D),
        centered_clip(row_1D, tau=1.0),
        centered_clip_published(row_1D, tau=1.0),
    ):
        assert torch.equal(found_D, row_1D[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RULES)
def test_equal_rows_are_their_own_aggregate(name: str, dtype: torch.dtype) -> None:
    row_D = gaussian_rows(5, 1, 40, dtype)[0]
    found_D = bound_rule(name, 8, 50.0 if name in FROM_ZERO else 0.5)(row_D.expand(8, 40))
    torch.testing.assert_close(found_D, row_D, rtol=4 * torch.finfo(dtype).eps, atol=0)
