"""CenteredClip in two reads of the matrix, with a known bound of the residual.

Every iterate of CenteredClip is a combination of the rows, so the whole iteration can run on the P×P Gram matrix of the
rows around some reference point: one read makes it, the solver works on P numbers, one more read combines the rows.

Three things make this exact where a plain Gram matrix is not:

* *Cancellation.* With rows 10³ times the others, small distances drown in large squares. The reference is therefore one
  of the central rows, products are float64, and an error bound follows every distance. Where the bound is too
  large for the tolerance, the rows are read again around the solution just found, which is the best reference there is.
* *Speed of convergence.* Reweighting (`v = Σ w_i x_i / Σ w_i`) always descends, but only linearly. Newton's step
  costs one P×P solve more and doubles the digits; it is taken when it helps.
* *The norm of the residual* is not computed from `w`, which would leave √ε, but from the difference between the weights
  and the coefficients of `v`, which is small itself.

Bits do not depend on the number of threads: chunks and orders are fixed, sums are those of `kernels` or einsum's, which starts
none. Below 200 rows LAPACK solves with one thread; another LAPACK may round Newton's step differently, so bits are not promised
across machines. Nobody compares them (SPEC A1).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip import kernels, on_device
from troth.clip.blocks import PLAIN, Code
from troth.clip.centered_clip import check_tau, dot, residual_tolerance, solve_for_any_rows
from troth.clip.exact import AggregationError, Floats, check_shape, check_vectors, flush_in_place
from troth.clip.kernels import spread
from troth.clip.rounded_center import acquits

# P peers, D coordinates, C coordinates of a chunk
_CHUNK_NUMBERS = 1 << 18  # numbers in a thread's float64 buffer: 2 MB
_RUN = 512  # products that are added up one after the other, before sums are added in pairs
_ROWS = 2  # rows of the Gram matrix in one call
_GRAM_ERROR = 2.0**-45  # relative error of a float64 inner product, whatever the numbers: 2⁻⁴⁵ for a run in two lanes
_SUM_ERROR = 2.0**-51  # relative error of a float64 sum of a few rows
_MOST_ROUNDS = 3
_MOST_ITERATIONS = 50  # ordinary rows take five; whatever takes more is left to the solver for any rows
_MOST_STALLS = 6
_MOST_HALVINGS = 60
_SAMPLE = 128  # coordinates looked at to choose the first reference
_LARGEST = 2.0**500  # beyond this, squares overflow float64
_TAU_RANGE = (2.0**-400, 2.0**400)


@dataclass(frozen=True)
class ClippedCenter:
    """The aggregate, and the evidence that it is one."""

    value_D: Tensor
    residual: float  # an upper bound of ‖Σ_i (x_i − v)·min(1, τ/‖x_i − v‖)‖, rounding of `value_D` included
    tolerance: float  # the largest residual that a checker accepts; the solver aims at an eighth of it
    iterations: int
    reads: int  # how often the P×D matrix was read


def centered_clip(vectors_PD: Tensor, *, tau: float) -> Tensor:
    """The clipped centre of the rows (see `centered_clip.py` for the definition), by the fast solver."""
    return solve_centered_clip(vectors_PD, tau=tau).value_D


def acquitted_center(vectors_PD: Tensor, *, tau: float, code: Code = PLAIN, share: float = 1 / 2) -> Tensor | None:
    """The clipped centre, rounded for its code, if this peer's own jury acquits it within a share of the tolerance; else None
    (SPEC A7).

    Other machines judge with other bits, so half of it has to do for whoever speaks, and a quarter before somebody else is
    blamed for having found none."""
    _check(vectors_PD, tau)
    value_D = code.round_center(_solve_around(vectors_PD, tau).value_D)
    if acquits(vectors_PD, value_D, tau=tau, code=code, share=share):
        return value_D
    value_D = code.round_center(solve_for_any_rows(vectors_PD, tau=tau)[0])
    return value_D if acquits(vectors_PD, value_D, tau=tau, code=code, share=share) else None


def solve_centered_clip(vectors_PD: Tensor, *, tau: float) -> ClippedCenter:
    """Solve to an eighth of `residual_tolerance`, or as near as the output's number format allows."""
    _check(vectors_PD, tau)
    found = _solve_around(vectors_PD, tau)
    if found.residual <= found.tolerance / 2:
        return found
    value_D, residual, tolerance = solve_for_any_rows(vectors_PD, tau=tau)
    sure = ClippedCenter(value_D, residual, tolerance, found.iterations, found.reads)
    return min(found, sure, key=lambda one: one.residual / one.tolerance if one.residual else 0.0)


def _check(vectors_PD: Tensor, tau: float) -> None:
    check_shape(vectors_PD)
    check_tau(tau)
    if not _TAU_RANGE[0] <= tau <= _TAU_RANGE[1]:
        raise AggregationError(f"tau must be within 2^±400 for its square to be a number, got {tau}")


def _solve_around(vectors_PD: Tensor, tau: float) -> ClippedCenter:
    """Solve around a central row; if that was not one, around zero, from a row with half of the others near it; and then around
    the centre found, where distances are most exact."""
    peers, row, iterations, best = len(vectors_PD), _central_row(vectors_PD), 0, None
    # Start at a row, not at the mean, which a row of length 10³⁰ carries off; of two rows the mean is a solution.
    reference_D, start_P = vectors_PD[row], np.eye(peers)[row] if peers > 2 else np.full(peers, 1 / peers)
    for round_number in range(1, _MOST_ROUNDS + 1):
        gram_PP = _gram(vectors_PD, reference_D, row if round_number == 1 else None)
        if not (gram_PP.diagonal() < _LARGEST**2).all():
            check_vectors(vectors_PD)  # names the row
            raise AggregationError(f"rows longer than {_LARGEST:.0e} cannot be squared: scale the vectors down")
        if round_number == 2 and peers > 2:
            start_P = np.eye(peers)[_medoid(gram_PP)]
        solution = _solve_on_gram(gram_PP, start_P, tau)
        iterations += solution.iterations
        value_D, rounding, value_norm = _combine(
            vectors_PD, reference_D, solution.coefficients_P, np.sqrt(gram_PP.diagonal())
        )
        found = ClippedCenter(
            value_D=value_D,
            residual=solution.residual_bound + _pull_change(solution.distance_P, rounding, tau),
            tolerance=residual_tolerance(value_norm, solution.distance_P.tolist(), tau=tau, size=len(value_D)),
            iterations=iterations,
            reads=2 * round_number,
        )
        if best is None or found.residual / found.tolerance < best.residual / best.tolerance:
            best = found
        if best.residual <= best.tolerance / 8:
            break
        # Zero is a reference that nobody chooses, and near enough: the tolerance is in units of the centre's own length.
        reference_D = torch.zeros_like(value_D) if round_number == 1 else best.value_D
        start_P = np.zeros(peers) if round_number > 1 else start_P
    assert best is not None
    return best


def _medoid(gram_PP: Floats) -> int:
    """The row nearest to half of the others, by all coordinates."""
    squared_P = gram_PP.diagonal()
    distance_PP = squared_P[:, None] + squared_P[None, :] - 2 * gram_PP
    return int(np.sort(distance_PP, axis=1)[:, (len(gram_PP) - 1) // 2].argmin())


# ------------------------------------------------------------------------------------------------ on the Gram matrix


@dataclass(frozen=True)
class _GramSolution:
    coefficients_P: Floats  # v = reference + Σ coefficients_i (x_i − reference)
    residual_bound: float
    distance_P: Floats
    iterations: int


@dataclass(frozen=True)
class _Iterate:
    """A point `v = Σ c_i x_i` and what the Gram matrix says about it."""

    c_P: Floats
    gram_c_P: Floats
    v_squared: float
    distance_P: Floats
    weight_P: Floats
    error_P: Floats  # weights, normalised, less c: the residual is weight_sum·Σ error_i x_i
    residual: float  # an upper bound of its norm, given these distances


def _iterate(gram_PP: Floats, norm_P: Floats, c_P: Floats, tau: float) -> _Iterate:
    gram_c_P = _times(gram_PP, c_P)
    v_squared = dot(c_P, gram_c_P)
    distance_P = np.sqrt(np.maximum(gram_PP.diagonal() - 2 * gram_c_P + v_squared, 0.0))
    weight_P = tau / np.maximum(distance_P, tau)
    total = weight_P.sum()
    error_P = weight_P / total - c_P
    # The error of the inner products is added: else two long opposite rows could hide a difference in it.
    lost = _GRAM_ERROR * dot(np.abs(error_P), norm_P) ** 2
    residual = float(total) * math.sqrt(max(dot(error_P, _times(gram_PP, error_P)), 0.0) + lost)
    return _Iterate(c_P, gram_c_P, v_squared, distance_P, weight_P, error_P, residual)


def _solve_on_gram(gram_PP: Floats, start_P: Floats, tau: float) -> _GramSolution:
    """Climb from `start_P` to the root, by Newton's direction while that works, by reweighting's where it does not."""
    norm_P = np.sqrt(gram_PP.diagonal())
    now = _iterate(gram_PP, norm_P, start_P, tau)
    best, iterations, newton_works, stalled = now, 0, True, 0
    while stalled < _MOST_STALLS and iterations < _MOST_ITERATIONS and now.residual > _rounding_of_pulls(now, tau):
        iterations += 1
        direction_P = _newton(gram_PP, now, tau) if newton_works else None
        moved = _line_search(gram_PP, norm_P, now, now.error_P if direction_P is None else direction_P, tau)
        # Far from the root Newton's model can mislead; reweighting always descends, so the two take turns there.
        newton_works = not newton_works or moved.residual <= now.residual / 2
        if np.array_equal(moved.c_P, now.c_P):
            break
        now = moved
        stalled = 0 if now.residual < best.residual else stalled + 1
        best = now if now.residual < best.residual else best
    return _GramSolution(
        coefficients_P=best.c_P,
        residual_bound=best.residual + _distance_error(norm_P, best, tau),
        distance_P=best.distance_P,
        iterations=iterations,
    )


def _rounding_of_pulls(at: _Iterate, tau: float) -> float:
    return 2.0**-50 * float(np.minimum(at.distance_P, tau).sum())


def _line_search(gram_PP: Floats, norm_P: Floats, at: _Iterate, direction_P: Floats, tau: float) -> _Iterate:
    """Go as far along the direction as the residual still points forward, to a tenth: the objective is convex.

    Slopes decide, not the objective itself, in which rows of length 10³⁰ would hide every change.
    """

    def slope(point: _Iterate) -> float:
        return float(point.weight_P.sum() * dot(point.error_P, gram_direction_P))

    gram_direction_P = _times(gram_PP, direction_P)
    start, low, high, length = slope(at), 0.0, np.inf, 1.0
    point = at
    for _ in range(_MOST_HALVINGS):
        point = _iterate(gram_PP, norm_P, at.c_P + length * direction_P, tau)
        ahead = slope(point)
        if abs(ahead) <= 0.1 * start or point.residual <= at.residual / 4:
            break
        low, high = (length, high) if ahead > 0 else (low, length)
        length = 2 * length if high == np.inf else (low + high) / 2
    return point


def _newton(gram_PP: Floats, at: _Iterate, tau: float) -> Floats | None:
    """Newton's step, as a change of coefficients, for `Σ w_i (x_i − v) = 0`.

    The derivative is `−W·I + Σ_clipped w_i u_i u_iᵀ` with u_i the unit vectors from v to the rows. The step
    is `(R + U q)/W` with `(W·I − UᵀU) q = UᵀR`, so P numbers q say all of it.
    """
    clipped_P = at.distance_P > tau
    if not clipped_P.any():
        return at.error_P  # nothing is clipped: the mean is exact
    total = at.weight_P.sum()
    around_v_PP = gram_PP - at.gram_c_P[:, None] - at.gram_c_P[None, :] + at.v_squared
    u_scale_P = np.where(clipped_P, np.sqrt(at.weight_P) / np.maximum(at.distance_P, tau), 0.0)
    u_dot_u_PP = around_v_PP * u_scale_P[:, None] * u_scale_P[None, :]
    gram_error_P = _times(gram_PP, at.error_P)  # R = W Σ error_i (x_i − reference)
    u_dot_r_P = u_scale_P * total * (gram_error_P - dot(at.c_P, gram_error_P))
    try:
        q_P = np.linalg.solve(total * np.eye(len(gram_PP)) - u_dot_u_PP, u_dot_r_P)
    except np.linalg.LinAlgError:
        return None  # rows on one line, all clipped: any point between them will do, and reweighting finds one
    bend_P = u_scale_P * q_P / total  # coefficients of rows around v, …
    direction_P = at.error_P + bend_P - at.c_P * bend_P.sum()  # … written around the reference
    return direction_P if np.isfinite(direction_P).all() else None


def _pull_change(distance_P: Floats, moved: float, tau: float) -> float:
    """Bound the change of the residual when v moves so far: each row's pull changes by its weight at the nearer end, or turns."""
    return float(np.minimum(2 * tau, tau / np.maximum(distance_P - moved, tau) * moved).sum())


def _distance_error(norm_P: Floats, at: _Iterate, tau: float) -> float:
    """Bound the error of the residual that comes from rounded inner products."""
    squared_error_P = _GRAM_ERROR * (dot(np.abs(at.c_P), norm_P) + norm_P) ** 2
    touched_P = at.distance_P**2 + squared_error_P > tau**2  # only clipped rows have a weight that depends on distance
    error_P = tau * squared_error_P / (2 * np.maximum(at.distance_P, tau) ** 2)
    return float(error_P[touched_P].sum())


def _times(gram_PP: Floats, numbers_P: Floats) -> Floats:
    products_P: Floats = np.einsum("ij,j->i", gram_PP, numbers_P)  # not by BLAS, as every sum here
    return products_P


# -------------------------------------------------------------------------------------------------- reads of the matrix


def _central_row(vectors_PD: Tensor) -> int:
    """A row with half of the others near it, judged by a sample of coordinates.

    Only a guess that saves a round: an adversary who spoils it costs time, not accuracy.
    """
    stride = max(1, vectors_PD.shape[1] // _SAMPLE)
    sample_PD = vectors_PD[:, ::stride][:, :_SAMPLE].detach().cpu().double().numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # rows that cannot be squared are refused later, by name
        # Some rows at a time: differences stay in the processor's cache.
        some = max(1, _CHUNK_NUMBERS // 4 // sample_PD.size)
        away = (sample_PD[first : first + some, None] - sample_PD for first in range(0, len(sample_PD), some))
        distance_PP = np.concatenate([np.einsum("rpd,rpd->rp", away_RPD, away_RPD) for away_RPD in away])
    half = (len(sample_PD) - 1) // 2
    return int(np.sort(distance_PP, axis=1)[:, half].argmin())


def _gram(vectors_PD: Tensor, reference_D: Tensor, at_row: int | None = None) -> Floats:
    """`⟨x_i − r, x_j − r⟩` in float64, chunk by chunk, on all cores; `at_row`: the row that r is.

    Partial sums are added in chunk order: which thread is faster does not show in the bits.
    """
    if vectors_PD.is_cuda:
        return on_device.gram(vectors_PD, reference_D)
    rows_PD, center_D, peers = vectors_PD.detach().numpy(), reference_D.detach().numpy(), len(vectors_PD)
    if len(center_D) < _RUN:  # both triangles at once take less time than many calls
        around_PD = rows_PD.astype(np.float64) - center_D.astype(np.float64)
        products_PP: Floats = np.einsum("id,jd->ij", around_PD, around_PD)
        return products_PP
    others = [row for row in range(peers) if row != at_row]  # around itself a row is zero

    def partial_gram(chunk: int) -> Floats:
        columns = chunks[chunk]
        return _gram_of_chunk(rows_PD[:, columns], others, center_D[columns])

    chunks = _chunks(vectors_PD)
    gram_PP = np.zeros((peers, peers))
    if kernels.takes(vectors_PD, reference_D) and others:
        gram_PP[np.ix_(others, others)] = kernels.gram([rows_PD[row] for row in others], center_D)
    elif others:
        gram_PP[np.ix_(others, others)] = np.add.reduce(spread(partial_gram, len(chunks)))
    return gram_PP + np.triu(gram_PP, 1).T


def _gram_of_chunk(rows_PC: NDArray[Any], others: list[int], center_C: NDArray[Any]) -> Floats:
    """The upper triangle, in runs of `_RUN` products. Einsum starts no threads; BLAS splits its sums among them."""
    width = len(center_C)
    around_OC = np.zeros((len(others), -(-width // _RUN) * _RUN))
    for around_C, row in zip(around_OC[:, :width], others, strict=True):
        around_C[:] = rows_PC[row]
    around_OC[:, :width] -= center_C.astype(np.float64)
    around_ONR = around_OC.reshape(len(others), -1, _RUN)
    gram_OO = np.zeros((len(others), len(others)))
    for i in range(0, len(others), _ROWS):
        some_OON = np.einsum("inr,jnr->ijn", around_ONR[i : i + _ROWS], around_ONR[i:])
        gram_OO[i : i + _ROWS, i:] = some_OON.sum(axis=2)
    return np.triu(gram_OO)


def _combine(
    vectors_PD: Tensor, reference_D: Tensor, coefficients_P: Floats, norms_P: Floats
) -> tuple[Tensor, float, float]:
    """`v = r + Σ c_i (x_i − r)`, the norm of its rounding error in the output format, and its own norm."""
    rest = 1.0 - float(coefficients_P.sum())  # the reference's own weight: 0 when the rows make up all of v
    rows_PD, center_D = vectors_PD.detach(), reference_D.detach()
    if vectors_PD.is_cuda:
        on_gpu_P = torch.from_numpy(coefficients_P).to(vectors_PD.device)
        value_D, *squares = on_device.combine(rows_PD, on_gpu_P, center_D, rest)
    elif kernels.takes(vectors_PD, reference_D):
        found_D, *squares = kernels.combine(rows_PD.numpy(), coefficients_P, center_D.numpy(), rest)
        value_D = torch.from_numpy(found_D)
    else:
        value_D, *squares = _combine_by_numpy(rows_PD, coefficients_P, center_D.numpy(), rest)
    lost, length, reach = np.sqrt(squares).tolist()
    # Float64 itself loses digits in adding up rows that may be far longer than their combination.
    summed = dot(np.abs(coefficients_P), norms_P) + (float(np.abs(coefficients_P).sum()) + abs(rest)) * reach
    equal = not norms_P.any()  # then v is a row as it is
    return value_D, lost + (0.0 if equal else _SUM_ERROR * summed), length


def _combine_by_numpy(
    vectors_PD: Tensor, coefficients_P: Floats, center_D: NDArray[Any], rest: float
) -> tuple[Tensor, float, float, float]:
    """`Σ c_i x_i + rest·r`, rounded and flushed; with the squares of what rounding lost, of the value and of r."""
    rows_PD, value_D, chunks = vectors_PD.numpy(), np.empty_like(center_D), _chunks(vectors_PD)

    def combine(chunk: int) -> tuple[float, float, float]:
        columns = chunks[chunk]
        wide_PC, center_C = rows_PD[:, columns].astype(np.float64), center_D[columns].astype(np.float64)
        exact_C = np.einsum("p,pc->c", coefficients_P, wide_PC)
        if rest:
            exact_C += rest * center_C
        value_D[columns] = exact_C
        flush_in_place(value_D[columns])  # some machines flush subnormals in reading, so all do
        rounded_C = value_D[columns].astype(np.float64)
        exact_C -= rounded_C
        return dot(exact_C, exact_C), dot(rounded_C, rounded_C), dot(center_C, center_C)

    lost, length, reach = np.add.reduce(spread(combine, len(chunks))).tolist()
    return torch.from_numpy(value_D), lost, length, reach


def _chunks(vectors_PD: Tensor) -> list[slice]:
    peers, width = vectors_PD.shape
    chunk = max(_RUN, _CHUNK_NUMBERS // peers // _RUN * _RUN)
    return [slice(start, min(start + chunk, width)) for start in range(0, width, chunk)]
