"""Differences, lengths and projections, to twelve digits against the readable reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.clip.nasty import PROPERTY, moderate, seeds, sizes
from troth.clip import kernels
from troth.crypto import projection_signs, sign_bytes, tagged_hash
from troth.protocol.core.parts import commit_parts, part_bounds
from troth.protocol.step.audits import make_report, right_reports
from troth.protocol.wire.messages import ReportNumbers
from troth.protocol.wire.primitives import Primitives, part_norms, row_norms
from troth.workshop.simulation.primitives import uploaded

KEY = tagged_hash("projections of a test")
WITHIN = 1e-12


def near(found: NDArray[np.float64], right: NDArray[np.float64], scale: NDArray[np.float64] | float) -> bool:
    return bool((np.abs(found - right) <= WITHIN * np.asarray(scale)).all())


@PROPERTY
@given(sizes, st.integers(1, 4), st.sampled_from([1, 8, 16, 17, 64]), st.integers(1, 3), seeds)
def test_one_pass_gives_what_three_give(size: int, peers: int, count: int, parts: int, seed: int) -> None:
    rows_PD = np.stack([moderate(size, seed + p) for p in range(peers)])
    center_D, bounds = moderate(size, seed + 9), part_bounds(size, min(parts, size))
    found = kernels.differences(rows_PD, center_D, bounds, lambda start, stop: sign_bytes(KEY, count, start, stop))
    lengths_SP = kernels.squared_lengths(list(rows_PD), bounds)
    for span in range(len(bounds) - 1):
        at = slice(bounds[span], bounds[span + 1])
        away_PD = rows_PD[:, at].astype(np.float64) - center_D[at]
        signs_KD = projection_signs(KEY, count, at.start, at.stop).astype(np.float64)
        square_P, length_P = (np.sum(np.square(x, dtype=np.longdouble), axis=1) for x in (away_PD, rows_PD[:, at]))
        assert near(found.squares_SP[span], square_P.astype(float), square_P)
        assert near(found.lengths_SP[span], length_P.astype(float), length_P)
        assert near(lengths_SP[span], length_P.astype(float), length_P)
        products_PK = away_PD @ signs_KD.T
        assert near(found.products_SPK[span][:, :count], products_PK, np.sqrt(square_P)[:, None])


@pytest.mark.parametrize("number", [0.1, -1e-15, 3e15])
def test_equal_numbers_lose_no_more_digits_than_others(number: float) -> None:
    """The worst for long sums: every addition is off in the same direction."""
    size = 3_000_000
    row_D, zero_D = np.full(size, number, np.float32), np.zeros(size, np.float32)
    found = kernels.differences([row_D], zero_D, (0, size), lambda start, stop: sign_bytes(KEY, 16, start, stop))
    square = size * float(row_D[0]) ** 2
    assert found.squares_SP[0, 0] == pytest.approx(square, rel=1e-13)
    assert kernels.squared_lengths([row_D], (0, size))[0, 0] == pytest.approx(square, rel=1e-13)
    counts_K = projection_signs(KEY, 16, 0, size).sum(axis=1, dtype=np.int64)
    assert near(found.products_SPK[0, 0], float(row_D[0]) * counts_K, square**0.5)


def alike(found: ReportNumbers, right: ReportNumbers, tau_P: NDArray[np.float64]) -> bool:
    return (
        near(found.lengths_P, right.lengths_P, right.lengths_P)
        and near(found.norms_P, right.norms_P, right.norms_P)
        and near(found.projections_PK, right.projections_PK, np.minimum(right.norms_P, tau_P)[:, None])
    )


def test_reports_about_large_vectors_come_out_alike_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    size, tools = 600_001, Primitives()
    bounds, taus = part_bounds(size, 3), np.array([1e-3, 1.0, 1e9])
    own = commit_parts(torch.from_numpy(moderate(size, 1)), bounds)
    aggregate_D = torch.from_numpy(moderate(size, 2))
    projector = tools.projector(KEY, 16, size)
    part = slice(bounds[1], bounds[2])
    rows_PD = torch.from_numpy(np.stack([own.numbers_D[part], moderate(part.stop - part.start, 3)]))
    assert projector.differences(own.numbers_D[None], aggregate_D, bounds) is not None, "large enough"

    made = make_report(own, aggregate_D, projector, taus)
    right = right_reports(rows_PD, aggregate_D[part], projector, part.start, taus[1])
    assert near(made.projections_PK[1], right.projections_PK[0], taus[1]), "an owner finds what the reporter says"
    norms = row_norms(rows_PD.numpy()), part_norms(own.numbers_D, bounds)

    monkeypatch.setattr(kernels, "compiled", lambda _: False)
    assert alike(made, make_report(own, aggregate_D, projector, taus), taus)
    tau_R = np.full(2, taus[1])
    assert alike(right, right_reports(rows_PD, aggregate_D[part], projector, part.start, taus[1]), tau_R)
    assert near(norms[0], row_norms(rows_PD.numpy()), norms[0])
    assert near(norms[1], part_norms(own.numbers_D, bounds), norms[1])


def test_lying_numbers_reach_the_report_as_numpy_would_say_them() -> None:
    """An infinity in the centre makes norms infinite, not an error."""
    size, tools = 300_000, Primitives()
    own = commit_parts(torch.zeros(size), (0, size))
    aggregate_D = torch.zeros(size)
    aggregate_D[5] = float("inf")
    with np.errstate(invalid="ignore"):
        made = make_report(own, aggregate_D, tools.projector(KEY, 16, size), [1.0])
    assert np.isinf(made.norms_P).all()


@pytest.mark.parametrize("start", [0, 3, 8, 11])
def test_signs_are_uploaded_from_where_they_lie_in_their_memory(start: int) -> None:
    """The keystream's first block begins before them: the array stands in the middle of what was allocated."""
    memory = torch.full((4096,), 7, dtype=torch.uint8)
    signs_DB = sign_bytes(KEY, 16, start, 600, lambda count: memory[:count].numpy())
    assert (signs_DB.ctypes.data > memory.data_ptr()) == (start % 8 > 0)
    found_DB = uploaded(signs_DB, memory, torch.device("cpu"))
    assert found_DB.shape == (600 - start, 2)
    assert found_DB._base is memory, "else PyTorch does not know that this memory is being read"
    assert np.array_equal(found_DB.numpy(), sign_bytes(KEY, 16, start, 600))
