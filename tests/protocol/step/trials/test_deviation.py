"""SPEC D3: how far a report is from one's own where hardware computes other bits. [D3]"""

from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray
from torch import Tensor

from troth.crypto import stream, tagged_hash
from troth.protocol.core.parts import commit_parts, part_bounds
from troth.protocol.step.audits import ACCUSE, CONVICT, deviations, make_report
from troth.protocol.wire.messages import ReportNumbers
from troth.protocol.wire.primitives import Primitives

# P parts, K projections, D coordinates

SIZE, PARTS, ROWS = 60, 4, 16
BOUNDS = part_bounds(SIZE, PARTS)
PROJECT = partial(Primitives().project, tagged_hash("test"), ROWS, SIZE)
NO_CLIPPING, CLIPPED = np.full(PARTS, 1e6), np.full(PARTS, 0.01)
seeds = st.integers(0, 10**6)
finite = st.floats(allow_nan=False, allow_infinity=False)


def vector(seed: int, purpose: str) -> Tensor:
    return torch.from_numpy(stream(seed, purpose).normal(SIZE)).float()


def report(gradient_D: Tensor, aggregate_D: Tensor, tau_P: NDArray[np.float64]) -> ReportNumbers:
    return make_report(commit_parts(gradient_D, BOUNDS), aggregate_D, PROJECT, tau_P.tolist())


@pytest.mark.parametrize("tau_P", [NO_CLIPPING, CLIPPED])
@given(seed=seeds)
def test_ones_own_report_is_no_deviation(tau_P: NDArray[np.float64], seed: int) -> None:
    """SPEC D3."""
    own_D = vector(seed, "gradient")
    own = report(own_D, vector(seed, "aggregate"), tau_P)
    assert deviations(own, own, own_D, BOUNDS, tau_P).tolist() == [0.0] * PARTS


@given(seed=seeds, part=st.integers(0, PARTS - 1), shift=st.floats(1e-3, 10))
def test_a_shift_shows_in_its_part_as_its_share_of_the_gradient_however_much_was_clipped(
    seed: int, part: int, shift: float
) -> None:
    """SPEC D3: an RMS of 16 signs is within a factor of 2.5 of the length; clipping is undone."""
    own_D, aggregate_D = vector(seed, "gradient"), vector(seed, "aggregate")
    start, stop = BOUNDS[part], BOUNDS[part + 1]
    direction_D = vector(seed, "shift")[start:stop]
    said_D = own_D.clone()
    said_D[start:stop] += shift * own_D[start:stop].norm() / direction_D.norm() * direction_D
    results = [
        deviations(report(said_D, aggregate_D, tau_P), report(own_D, aggregate_D, tau_P), own_D, BOUNDS, tau_P)
        for tau_P in (NO_CLIPPING, CLIPPED)
    ]
    assert shift / 2.5 < results[0][part] < 2.5 * shift
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9, atol=1e-12)
    assert np.delete(results[0], part).max() == 0


@given(seed=seeds, exponent=st.integers(-60, 60))
def test_units_do_not_matter(seed: int, exponent: int) -> None:
    """SPEC D3: a power of two changes no bit of the result."""
    own_D, said_D, aggregate_D = vector(seed, "own"), vector(seed, "said"), vector(seed, "aggregate")
    scale = 2.0**exponent
    results = [
        deviations(
            report(k * said_D, k * aggregate_D, k * CLIPPED),
            report(k * own_D, k * aggregate_D, k * CLIPPED),
            k * own_D,
            BOUNDS,
            k * CLIPPED,
        )
        for k in (1.0, scale)
    ]
    np.testing.assert_array_equal(results[0], results[1])


def test_a_wrong_norm_counts_by_itself() -> None:
    """SPEC D3: projections that fit do not excuse a norm that does not."""
    own_D, zeros_D = torch.ones(SIZE), torch.zeros(SIZE)
    own = report(own_D, zeros_D, NO_CLIPPING)
    said = ReportNumbers(own.lengths_P, own.norms_P + np.array([0, 3, 0, 0]), own.projections_PK)
    expected = [0, 3 / np.sqrt(15), 0, 0]
    np.testing.assert_allclose(deviations(said, own, own_D, BOUNDS, NO_CLIPPING), expected, rtol=1e-12)


def test_a_part_near_zero_counts_as_a_tenth_of_an_even_share() -> None:
    """SPEC D3: else rounding in a part without gradient would convict."""
    own_D = torch.ones(SIZE)
    own_D[:15] = 0
    own = report(own_D, torch.zeros(SIZE), NO_CLIPPING)
    said = ReportNumbers(own.lengths_P, own.norms_P + 1e-3, own.projections_PK)
    least = 0.1 * np.sqrt(45) * np.sqrt(15 / 60)
    found_P = deviations(said, own, own_D, BOUNDS, NO_CLIPPING)
    np.testing.assert_allclose(found_P, 1e-3 / np.array([least, *[np.sqrt(15)] * 3]), rtol=1e-9)


def test_usual_norms_keep_a_small_gradient_from_magnifying_what_does_no_harm() -> None:
    """SPEC D3."""
    own_D = torch.full((SIZE,), 1e-6)
    own = report(own_D, torch.zeros(SIZE), NO_CLIPPING)
    said = ReportNumbers(own.lengths_P, own.norms_P + 1e-6, own.projections_PK)
    usual_P = np.array([0, 1, 2, 1e-9])
    found_P = deviations(said, own, own_D, BOUNDS, NO_CLIPPING, usual_P)
    alone_P = deviations(said, own, own_D, BOUNDS, NO_CLIPPING)
    np.testing.assert_allclose(found_P, [alone_P[0], 1e-6, 5e-7, alone_P[3]], rtol=1e-9)
    assert alone_P[0] > 0.2


class TestHostile:
    @given(st.lists(finite, min_size=PARTS, max_size=PARTS), st.lists(finite, min_size=ROWS, max_size=ROWS), seeds)
    def test_whatever_is_said_gets_a_number(self, norms: list[float], row: list[float], seed: int) -> None:
        """SPEC D3: warnings are errors here, and "not a number" would pass every threshold."""
        own_D = vector(seed, "gradient")
        own = report(own_D, vector(seed, "aggregate"), CLIPPED)
        said = ReportNumbers(np.array(norms), np.array(norms), np.tile(row, (PARTS, 1)))
        found_P = deviations(said, own, own_D, BOUNDS, CLIPPED)
        assert (found_P >= 0).all()

    @pytest.mark.parametrize(
        ("norm", "projection"), [(1e308, 0.0), (1e308, 1e308), (-1e308, 1.0), (1.0, 1e308), (1.0, -1e308)]
    )
    def test_numbers_that_overflow_are_far_off(self, norm: float, projection: float) -> None:
        """SPEC D3: 0·∞ is the case that a hurried comparison would let pass."""
        own_D = vector(0, "gradient")
        tau_P = np.full(PARTS, 1e-80)
        own = report(own_D, torch.zeros(SIZE), tau_P)
        said = ReportNumbers(np.full(PARTS, norm), np.full(PARTS, norm), np.full((PARTS, ROWS), projection))
        assert (deviations(said, own, own_D, BOUNDS, tau_P) > 1e50).all()


class TestZeroGradient:
    own = report(torch.zeros(SIZE), torch.zeros(SIZE), NO_CLIPPING)

    def test_zero_fits_zero(self) -> None:
        """SPEC D3."""
        assert deviations(self.own, self.own, torch.zeros(SIZE), BOUNDS, NO_CLIPPING).tolist() == [0.0] * PARTS

    @pytest.mark.parametrize("least", [1.0, 1e-300])
    def test_anything_else_is_infinitely_far(self, least: float) -> None:
        """SPEC D3: however small; its square would vanish."""
        norms_P, projections_PK = np.zeros(PARTS), np.zeros((PARTS, ROWS))
        norms_P[1] = projections_PK[2, 7] = least
        said = ReportNumbers(norms_P, norms_P, projections_PK)
        found_P = deviations(said, self.own, torch.zeros(SIZE), BOUNDS, NO_CLIPPING)
        assert found_P.tolist() == [0, np.inf, np.inf, 0]


@given(seed=seeds, disputed_links=st.floats(0, 1))
def test_every_honest_juror_convicts_the_target_that_an_honest_validator_accuses(
    seed: int, disputed_links: float
) -> None:
    """SPEC D3: two honest peers within CONVICT·h of each other do not disagree on what is ACCUSE·h away from one (same G)."""
    validator_D, aggregate_D, usual_P = vector(seed, "own"), vector(seed, "aggregate"), np.full(PARTS, 1e3)
    juror_D, liar_D = (
        validator_D + disputed_links * vector(seed, "juror"),
        validator_D + 3 * disputed_links * vector(seed, "liar"),
    )
    reports = [report(g, aggregate_D, CLIPPED) for g in (validator_D, juror_D, liar_D)]
    honest_P, accuse_P = (
        deviations(said, reports[0], validator_D, BOUNDS, CLIPPED, usual_P) for said in (reports[1], reports[2])
    )
    convict_P = deviations(reports[2], reports[1], juror_D, BOUNDS, CLIPPED, usual_P)
    h = honest_P.max() / CONVICT * (1 + 1e-9)
    assert (convict_P[accuse_P > ACCUSE * h] > CONVICT * h).all()
