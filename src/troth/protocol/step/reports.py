"""Reports of contributors about their gradient and the aggregate, and the tolerance between two of them."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from troth.protocol.core.parts import CommittedParts
from troth.protocol.wire.messages import ReportNumbers
from troth.protocol.wire.primitives import Projector, row_norms

# P parts, R rows, K projections, D coordinates

# `Primitives.project` with its first arguments given: start of the vectors, and the vectors. A `Projector` may do more at once.
Project = Projector | Callable[[int, NDArray[np.float64]], NDArray[np.float64]]

CONVICT_AT = 1e-9  # relative error of a report above which a juror convicts …
ACCUSE_AT = 2e-9  # … an auditor or owner accuses: twice as much, so that no honest accuser finds itself alone …
COVER_AT = 4e-9  # … and an owner that did not name the reporter is guilty of covering (SPEC T7)
_BLOCK = 1 << 18  # coordinates at a time: float64 copies of whole gradients would take too much memory


def make_report(own: CommittedParts, aggregate_D: Tensor, project: Project, taus: Iterable[float]) -> ReportNumbers:
    """`‖g[p]‖`, `norm = ‖g[p] − ĝ[p]‖` and `s_k = ⟨z_k[p], (g[p] − ĝ[p])·min(1, τ_p/norm)⟩` in float64 (SPEC A5)."""
    tau_P = np.fromiter(taus, np.float64)
    if isinstance(project, Projector) and (found := project.differences(own.numbers_D[None], aggregate_D, own.bounds)):
        lengths_P1, squares_P1, products_P1K = found.lengths_SP, found.squares_SP, found.products_SPK
        return _clipped(np.sqrt(lengths_P1[:, 0]), squares_P1[:, 0], products_P1K[:, 0], tau_P)
    numbers_1D, center_D = own.numbers_D[None].cpu().numpy(), aggregate_D.cpu().numpy()
    if len(center_D) <= _BLOCK:  # one subtraction for all parts
        away_1D = np.subtract(numbers_1D, center_D, dtype=np.float64)
        spans = [(start, away_1D[:, start:stop]) for start, stop in pairwise(own.bounds)]
        squares = [np.einsum("rc,rc->r", away_1C, away_1C) for _, away_1C in spans]
        products = [project(start, away_1C) for start, away_1C in spans]
        return _clipped(own.part_lengths, np.concatenate(squares), np.concatenate(products) + 0.0, tau_P)
    squares, products = [], []
    for start, stop in pairwise(own.bounds):
        square_R, products_RK = _differences(numbers_1D[:, start:stop], center_D[start:stop], project, start)
        squares.append(square_R)
        products.append(products_RK)
    return _clipped(own.part_lengths, np.concatenate(squares), np.concatenate(products), tau_P)


def right_reports(rows_RD: Tensor, center_D: Tensor, project: Project, start: int, tau: float) -> ReportNumbers:
    """Right reports of all contributors about one part, which begins at `start`: a row per contributor, instead of per part."""
    tau_R, whole = np.full(len(rows_RD), tau), (0, len(center_D))
    if isinstance(project, Projector) and (found := project.differences(rows_RD, center_D, whole, start)):
        return _clipped(np.sqrt(found.lengths_SP[0]), found.squares_SP[0], found.products_SPK[0], tau_R)
    squares_R, products_RK = _differences(rows_RD.cpu().numpy(), center_D.cpu().numpy(), project, start)
    lengths_R = row_norms(rows_RD.cpu().numpy())
    return _clipped(lengths_R, squares_R, products_RK, tau_R)


def _differences(
    rows_RD: NDArray[np.float32], center_D: NDArray[np.float32], project: Project, start: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Squared distances of rows from the centre, and projections of the differences, unclipped."""
    squares_R, products_RK = np.zeros(len(rows_RD)), np.zeros((len(rows_RD), 1))
    for first in range(0, len(center_D), _BLOCK):
        block = slice(first, first + _BLOCK)
        away_RC = np.subtract(rows_RD[:, block], center_D[block], dtype=np.float64)
        squares_R += np.einsum("rc,rc->r", away_RC, away_RC)  # not BLAS, whose threads would wait for each other
        products_RK = products_RK + project(start + first, away_RC)
    return squares_R, products_RK


def _clipped(
    lengths_R: NDArray[np.float64],
    squares_R: NDArray[np.float64],
    products_RK: NDArray[np.float64],
    tau_R: NDArray[np.float64],
) -> ReportNumbers:
    norms_R = np.sqrt(squares_R)
    return ReportNumbers(lengths_R, norms_R, products_RK * (tau_R / np.maximum(norms_R, tau_R))[:, None])


def relative_errors(said: ReportNumbers, right: ReportNumbers, tau_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest difference in each row: lengths and norms relative to themselves, projections to `min(norm, τ)` (SPEC D2, V1)."""
    off_length_P = np.abs(said.lengths_P - right.lengths_P)
    off_norm_P = np.abs(said.norms_P - right.norms_P)
    off_P = np.abs(said.projections_PK - right.projections_PK).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Where only zero is right, any difference is infinitely large.
        length_error_P = np.where(off_length_P == 0, 0.0, off_length_P / right.lengths_P)
        norm_error_P = np.where(off_norm_P == 0, 0.0, off_norm_P / right.norms_P)
        error_P = np.where(off_P == 0, 0.0, off_P / np.minimum(right.norms_P, tau_P))
    return np.maximum(length_error_P, np.maximum(norm_error_P, error_P))
