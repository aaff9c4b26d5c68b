"""The geometric median where Weiszfeld's iteration divides by zero, and that it is a minimum elsewhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.clip.oracle import gaussian_rows
from troth.workshop.rules.memoryless import geometric_median

# P peers, D coordinates


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_leaves_a_row_that_is_not_the_median() -> None:
    """The mean, where it starts, is the row 0; without Vardi and Zhang's step it would never get away."""
    assert geometric_median(column(-4, 0, 1, 1, 2)).item() == pytest.approx(1.0, abs=1e-8)


def test_stays_on_a_row_that_is() -> None:
    """Two rows hold what one pulls: not a bit of movement."""
    assert geometric_median(column(0, 0, -3, 1, 2)).item() == 0.0


def test_most_rows_in_one_place_win() -> None:
    """Half of the rows or more in one place are a median, whatever the others do."""
    row_D = gaussian_rows(1, 1, 10)[0]
    rows_PD = torch.cat([row_D.expand(9, 10), 5 + gaussian_rows(2, 7, 10)])
    torch.testing.assert_close(geometric_median(rows_PD), row_D, rtol=0, atol=1e-7)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), peers=st.integers(3, 12), width=st.integers(2, 8), away=st.floats(1e-3, 10))
def test_no_other_point_is_nearer_to_all(seed: int, peers: int, width: int, away: float) -> None:
    rows_PD = gaussian_rows(seed, peers, width)
    found_D = geometric_median(rows_PD)
    other_D = found_D + away * gaussian_rows(seed + 1, 1, width)[0]
    sums = [float(torch.linalg.vector_norm(rows_PD - v_D, dim=1).sum()) for v_D in (found_D, other_D)]
    assert sums[0] <= sums[1]
