"""CenteredClip as published, and the equation of its solution (Karimireddy et al. 2021; Gorbunov et al. 2022).

The clipped centre `v` of rows `x_i` with radius `τ` solves

    Σ_i (x_i − v)·min(1, τ/‖x_i − v‖) = 0,

the minimum of a convex function: a liar's row, however long, pulls with a force of at most τ. The loop here is the
readable reference; `centered_clip_fast` finds the same point in a few reads of the matrix.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip import kernels
from troth.clip.exact import AggregationError, Floats, check_vectors, exact_norm, flush_in_place
from troth.clip.on_device import Wide, tree_sum

# P peers or rows, D coordinates, N coordinates in the span of the rows


def centered_clip_published(
    vectors_PD: Tensor, *, tau: float, iterations: int = 20, stop: float = 0.0, start_D: Tensor | None = None
) -> Tensor:
    """`v ← v + mean_i (x_i − v)·min(1, τ/‖x_i − v‖)`, from the coordinate median unless `start_D` is given.

    The paper's released settings are `iterations=500, stop=1e-6`: it ends when a step is no longer than `stop`. As
    published it computes norms in the rows' own format: float32 rows longer than 1.8e19 overflow and pull with 0.
    """
    check_vectors(vectors_PD)
    check_tau(tau)
    v_D = torch.median(vectors_PD, dim=0).values if start_D is None else start_D
    for _ in range(iterations):
        away_PD = vectors_PD - v_D
        scale_P = clip_weights(torch.linalg.vector_norm(away_PD, dim=1), tau)
        step_D = (away_PD * scale_P[:, None]).mean(dim=0)
        v_D = v_D + step_D
        if stop and torch.linalg.vector_norm(step_D) <= stop:
            break
    return v_D


def clip_weights(distance_P: Tensor, tau: float) -> Tensor:
    """`min(1, τ/distance)`: how much of each row's pull is left after clipping."""
    return (tau / distance_P).clamp(max=1.0)  # a distance of 0 gives inf, clamped to 1


def clip_residual(vectors_PD: Tensor, v_D: Tensor, *, tau: float) -> Tensor:
    """`Σ_i (x_i − v)·min(1, τ/‖x_i − v‖)` in float64: zero exactly at the clipped centre."""
    return torch.from_numpy(_pulls_here(vectors_PD, v_D, tau)[0])


def judge_center(vectors_PD: Tensor, v_D: Tensor, *, tau: float, rounding: float = 0.0) -> tuple[float, float]:
    """Give the length of the residual and its tolerance: the same two numbers on every machine (SPEC T6)."""
    residual, norms = measure_center(vectors_PD, v_D, tau=tau)
    return residual, residual_tolerance(exact_norm(v_D), norms, tau=tau, size=len(v_D), rounding=rounding)


def measure_center(vectors_PD: Tensor, v_D: Tensor, *, tau: float) -> tuple[float, list[float]]:
    """Give the length of the residual, and the rows' distances."""
    if vectors_PD.device.type != "cpu":
        rows_D = (row_D.double() for row_D in vectors_PD.detach())
        away_D, norms = pulls(rows_D, v_D.detach().to(vectors_PD.device).double(), tau)
        residual = math.sqrt(float(tree_sum(away_D * away_D)))
    elif kernels.takes(vectors_PD, v_D):
        residual, norms = kernels.pulls(vectors_PD.detach().numpy(), v_D.detach().numpy(), tau)
    else:
        residual_D, norms = _pulls_here(vectors_PD, v_D, tau)
        residual = math.sqrt(float(tree_sum(residual_D * residual_D)))
    return residual, list(norms)


def _pulls_here(vectors_PD: Tensor, v_D: Tensor, tau: float) -> tuple[Floats, list[float]]:
    rows_D = (row_D.double().numpy() for row_D in vectors_PD.detach().cpu())
    return pulls(rows_D, v_D.detach().cpu().double().numpy(), tau)


def pulls(rows_D: Iterable[Wide], center_D: Wide, tau: float) -> tuple[Wide, list[float]]:
    """The residual and the distances in float64, row by row in a fixed order: NumPy's arrays, or tensors where they lie.

    Their own rounding is below 2⁻⁴⁵ of the clipped distances, and so within 2⁻⁴⁰. A library's norm rounds worse: with it,
    two liars of opposite signs and 10⁵ equal coordinates had an honest owner convicted.
    """
    residual_D, norms = center_D - center_D, list[float]()  # zeros
    for row_D in rows_D:
        away_D = row_D - center_D
        norms.append(math.sqrt(float(tree_sum(away_D * away_D))))
        away_D *= tau / max(norms[-1], tau)
        residual_D += away_D
    return residual_D, norms


def slack(center_norm: float, size: int, rounding: float = 0.0) -> float:
    """`ε = 2⁻²¹·‖v‖ + √d·2⁻¹²⁵`: eight times as far as rounding to float32 moves an aggregate, and twice as far as flushing
    subnormals does; and as far as it may be rounded for its code (SPEC C4)."""
    return 2.0**-21 * center_norm + math.sqrt(size) * 2.0**-125 + rounding


def residual_tolerance(
    center_norm: float, norms: Sequence[float], *, tau: float, size: int, rounding: float = 0.0
) -> float:
    """The largest residual norm at which an aggregate still counts as right (SPEC V2).

    `Σ_i min(2τ, ε·τ/max(norm_i − ε, τ)) + 2⁻⁴⁰·Σ_i min(norm_i, τ)` with `norm_i = ‖x_i − v‖`. The first sum bounds the change
    of the pulls when `v` moves by ε; the second is the loss of float64 scalars. All numbers are announced, sums round once and
    operations are single: the same bits everywhere.
    """
    epsilon = slack(center_norm, size, rounding)
    moved = math.fsum(min(2 * tau, epsilon * tau / max(norm - epsilon, tau)) for norm in norms)
    return moved + 2.0**-40 * math.fsum(min(norm, tau) for norm in norms)


def check_tau(tau: float) -> None:
    if not (tau > 0 and tau < float("inf")):
        raise AggregationError(f"the clipping radius tau must be a positive finite number, got {tau}")


# CenteredClip for whatever rows there are: a path to the centre of bounded length, from a start that no minority can choose.
#
# `centered_clip_fast` solves ordinary rows in two reads, and knows when it fails. A liar that knows it can make it fail;
# those rows come here, where a proof holds for all rows. The mathematics is in `docs/decisions/0033-a-total-solver.md`; in
# short:
#
# * *A barrier in place of the ball.* The pulls of the clipped centre are the points nearest to the rows among those with
#   `‖z_i‖ ≤ τ` and `Σ z_i = 0`. With `−μ·log(1 − ‖z‖²/τ²)` in place of `‖z‖ ≤ τ` a row at distance r pulls with `ρ < min(r,
#   τ)`, where `ρ·(1 + 2μ/(τ² − ρ²)) = r`. What the centre minimises is then self-concordant, whatever the rows are: Newton's
#   method takes a bounded number of steps for each μ. Where μ falls by a factor, what is to be made up is a multiple of the
#   number of rows; and every pull differs from the clipped one by less than √(2μ).
# * *Coordinates, not products.* All of it happens in the span of the rows, P numbers a row, by Householder's reflections:
#   each row is as exact as its own length allows. Squares of lengths would lose half of the digits.
#
# Bits differ between machines, and nobody compares them (SPEC A1).
_SHRINK = 1 / 64  # of μ, from stage to stage
_NEAR = 0.25  # Newton's decrement at which a stage ends
_LEAST_BARRIER = 2.0**-110  # √(2μ) is far below what float64 tells from τ
_MOST_STEPS = 100  # of Newton in a stage, and doublings of one; twenty are many
_MOST_ROUNDS = 6  # times that rows are read around the centre found last
_ROUNDING = 2.0**-48  # relative: an aim is sixteen times as much, where the reference is as near as the centre
_FLAT = 2.0**-50  # least curvature, relative to the largest: rounding leaves no less
_CHUNK = 1 << 10  # coordinates that are reflected at a time: each adds little to the error of a sum
_ROOT_STEPS = 8  # of Newton from above, for the pulls: it doubles digits in each


def solve_for_any_rows(rows_PD: Tensor, *, tau: float) -> tuple[Tensor, float, float]:
    """The clipped centre, with its residual and tolerance as a juror finds them (SPEC T6)."""
    here_PD = rows_PD.detach().cpu()
    center_D = torch.median(here_PD, dim=0).values  # no minority takes a coordinate beyond the others'
    found = []
    for _ in range(_MOST_ROUNDS):
        distance_P = _distances_at_center(here_PD, center_D, tau)
        center_D = _weighted_mean(here_PD, tau / np.maximum(distance_P, tau))
        found.append((center_D.to(rows_PD.device), *judge_center(here_PD, center_D, tau=tau)))
        if found[-1][1] <= found[-1][2] / 8 or (len(found) > 1 and _share(found[-1]) > _share(found[-2]) / 2):
            break  # else distances from afar were not exact enough: from here they are
    return min(found, key=_share)


def _share(found: tuple[Tensor, float, float]) -> float:
    _, residual, tolerance = found
    return residual / tolerance if residual else 0.0


def _distances_at_center(rows_PD: Tensor, reference_D: Tensor, tau: float) -> Floats:
    """Distances of the rows from their clipped centre, by the path from the reference."""
    rows_PN = _coordinates(rows_PD.numpy(), reference_D.numpy()) / tau
    reference_norm, size, at_N = exact_norm(reference_D) / tau, len(reference_D), np.zeros(rows_PN.shape[1])
    now = _Pulls(rows_PN, at_N, 0.0)
    nearest_P = np.sort(now.distances)
    barrier, best = float(nearest_P[len(nearest_P) // 2]) + 1.0, now
    while barrier > _LEAST_BARRIER:
        at_N = _newton(rows_PN, at_N, barrier)
        now = _Pulls(rows_PN, at_N, 0.0)
        best = min(best, now, key=lambda one: one.residual)
        length = max(0.0, reference_norm - float(np.linalg.norm(at_N)))
        aim = residual_tolerance(length, now.distances.tolist(), tau=1.0, size=size) / 16
        if now.residual <= max(aim, now.rounding):
            return now.distances * tau
        barrier *= _SHRINK
    return best.distances * tau


def _newton(rows_PN: Floats, at_N: Floats, barrier: float) -> Floats:
    """Go near the centre for this barrier, by damped steps: each descends by at least what the proof says."""
    now = _Pulls(rows_PN, at_N, barrier)
    for _ in range(_MOST_STEPS):
        direction_N = now.step()
        decrement = np.sqrt(max(dot(direction_N, now.pull), 0.0) / barrier)
        if not decrement > _NEAR or now.residual <= now.rounding:
            break
        length = 1 / (1 + decrement)
        following = now.moved(length * direction_N)
        for _ in range(_MOST_STEPS):  # farther, while the way there still descends: convex, so that is lower still
            length *= 2
            farther = now.moved(length * direction_N)
            if not dot(farther.pull, direction_N) > 0:
                break
            following = farther
        now = following
    return now.at_N


@dataclass(frozen=True)
class _Pulls:
    """Pulls of the rows on a point, in units of τ; with a barrier of 0 they are the clipped ones."""

    rows_PN: Floats
    at_N: Floats
    barrier: float

    def moved(self, by_N: Floats) -> "_Pulls":
        return _Pulls(self.rows_PN, self.at_N + by_N, self.barrier)

    @cached_property
    def away(self) -> Floats:
        return self.rows_PN - self.at_N

    @cached_property
    def distances(self) -> Floats:
        return _lengths(self.away)

    @cached_property
    def towards(self) -> Floats:
        """Unit vectors to the rows; zero where a row is."""
        towards_PN: Floats = self.away / np.where(self.distances > 0, self.distances, 1.0)[:, None]
        return towards_PN

    @cached_property
    def short(self) -> Floats:
        """What a pull lacks to the clipped one: the root η of `η(b + η) = 2μ(c − η)/(1 + c − η)`, with `b = ∣r − 1∣` and
        `c = min(r, 1)`. Newton's method comes down to it from above, since the difference of both sides is convex."""
        clipped_P, beyond_P = np.minimum(self.distances, 1.0), np.abs(self.distances - 1.0)
        q_P = 2 * self.barrier * clipped_P / (1 + clipped_P)
        root_P = beyond_P + np.sqrt(beyond_P**2 + 4 * q_P)
        short_P = np.minimum(2 * q_P / np.where(root_P > 0, root_P, 1.0), clipped_P)
        for _ in range(_ROOT_STEPS if self.barrier else 0):
            rest_P = 1 + clipped_P - short_P
            value_P = short_P * (beyond_P + short_P) - 2 * self.barrier * (clipped_P - short_P) / rest_P
            slope_P = beyond_P + 2 * short_P + 2 * self.barrier / rest_P**2
            short_P = np.clip(short_P - value_P / slope_P, 0.0, clipped_P)
        return np.asarray(short_P)

    @cached_property
    def strengths(self) -> Floats:
        strength_P: Floats = np.minimum(self.distances, 1.0) - self.short
        return strength_P

    @cached_property
    def pull(self) -> Floats:
        """The sum of all pulls: the way down."""
        pull_N: Floats = np.einsum("p,pn->n", self.strengths, self.towards)
        return pull_N

    @property
    def residual(self) -> float:
        return float(_lengths(self.pull[None])[0])

    @property
    def rounding(self) -> float:
        """What the residual is off by, at most: a difference is as exact as the longer of its terms."""
        reach_P = _lengths(self.rows_PN) + _lengths(self.at_N[None])
        held_P = self.strengths / np.where(self.distances > 0, self.distances, 1.0)
        return _ROUNDING * float((held_P * reach_P).sum())

    def step(self) -> Floats:
        """Newton's step. A row bends by `ρ/r` across its direction, and by `dρ/dr` along it."""
        far_P, short_P = self.distances >= 1, self.short
        gap_P = np.where(far_P, short_P, 1 - self.distances + short_P)  # 1 − ρ, with all its digits
        room_P = gap_P * (1 + self.strengths)
        with np.errstate(divide="ignore", over="ignore"):
            along_P = 1 / (1 + 2 * self.barrier * (1 + self.strengths**2) / room_P**2)
        across_P = np.where(
            self.distances > 0, self.strengths / np.where(self.distances > 0, self.distances, 1.0), along_P
        )
        total = float(across_P.sum())
        bend_NN = -np.einsum("p,pn,pm->nm", across_P - along_P, self.towards, self.towards)
        bend_NN[np.diag_indices_from(bend_NN)] += total * (1 + _FLAT)
        step_N: Floats = np.linalg.solve(bend_NN, self.pull)
        return step_N


def _lengths(vectors_PN: Floats) -> Floats:
    """Lengths of vectors whose squares may be no numbers."""
    largest_P = np.abs(vectors_PN).max(axis=1)
    scale_P = np.where(largest_P > 0, largest_P, 1.0)
    scaled_PN = vectors_PN / scale_P[:, None]
    lengths_P: Floats = np.sqrt(np.einsum("pn,pn->p", scaled_PN, scaled_PN)) * scale_P
    return lengths_P


def dot(left_N: Floats, right_N: Floats) -> float:
    """Not by BLAS, which splits sums among threads."""
    return float(np.einsum("n,n->", left_N, right_N))


def _coordinates(rows_PD: NDArray[Any], reference_D: NDArray[Any]) -> Floats:
    """The rows around the reference, in an orthonormal basis of their span: differences and lengths stay as they are."""
    peers, size = rows_PD.shape
    if size <= peers:
        return rows_PD.astype(np.float64) - reference_D.astype(np.float64)
    upper_NP = np.zeros((0, peers))
    for start in range(0, size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        around_PC = rows_PD[:, chunk].astype(np.float64) - reference_D[chunk].astype(np.float64)
        upper_NP = np.asarray(np.linalg.qr(np.concatenate([upper_NP, around_PC.T]), mode="r"))
    return np.ascontiguousarray(upper_NP.T)


def _weighted_mean(rows_PD: Tensor, weight_P: Floats) -> Tensor:
    """`Σ w_i x_i / Σ w_i`, rounded once to the rows' format, without subnormals."""
    share_P, mean_D = weight_P / weight_P.sum(), torch.empty_like(rows_PD[0])
    for start in range(0, len(mean_D), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        exact_C = np.einsum("p,pc->c", share_P, rows_PD[:, chunk].double().numpy())
        mean_D[chunk] = torch.from_numpy(exact_C).to(mean_D.dtype)
    flush_in_place(mean_D)
    return mean_D
