"""Rules that are functions of one step's rows: mean, medians, Krum and what follows from it, MDA, MeaMed, CAF."""

import numpy as np
import torch
from torch import Tensor

from troth.clip.exact import AggregationError, Floats, check_byzantine, check_vectors

# P peers, D coordinates

MOST_BRANCHES = 200_000  # of `mda`'s search for a subset, all thresholds together: about a second


def mean(vectors_PD: Tensor) -> Tensor:
    """`Σ x_i / P`. Optimal without liars; a single liar moves it anywhere, so it is the baseline that must fail."""
    check_vectors(vectors_PD)
    return vectors_PD.mean(dim=0)


def median(vectors_PD: Tensor) -> Tensor:
    """The middle value of each coordinate; the mean of the two middle ones when P is even (Yin et al. 2018).

    Withstands fewer than P/2 liars, at the price of a bias when the coordinates are skewed.
    """
    check_vectors(vectors_PD)
    return _middle(sorted_coordinates(vectors_PD))


def trimmed_mean(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Drop the `byzantine` smallest and largest values of each coordinate, average the rest (Yin et al. 2018)."""
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "trimmed-mean")
    return sorted_coordinates(vectors_PD)[byzantine : peers - byzantine].mean(dim=0)


def geometric_median(vectors_PD: Tensor, *, tolerance: float = 1e-10, iterations: int = 1000) -> Tensor:
    """`argmin_v Σ ‖x_i − v‖` by Weiszfeld's iteration, in float64, to convergence.

    Stops once a step is shorter than `tolerance` times the median distance. A vector that the iterate sits on is handled
    as Vardi and Zhang (2000) do: it pulls with weight one at most, instead of dividing by zero.
    """
    check_vectors(vectors_PD)
    if not tolerance > 0 or iterations < 1:
        raise AggregationError(f"tolerance must be positive and iterations at least 1, got {tolerance}, {iterations}")
    rows_PD = vectors_PD.double()
    v_D = median(rows_PD)  # not the mean, which one long row carries off
    for _ in range(iterations):
        away_PD = rows_PD - v_D
        distance_P = torch.linalg.vector_norm(away_PD, dim=1)
        scale = distance_P.median()  # nor a mean distance, for the same reason
        on_it_P = distance_P <= scale * 1e-15
        if bool(on_it_P.all()):
            break
        weight_P = torch.where(on_it_P, 0.0, 1.0 / torch.where(on_it_P, 1.0, distance_P))
        pull_D = weight_P @ away_PD
        # The vectors under v hold it back with a force of at most one each; v stays if nothing pulls harder.
        pull, held = torch.linalg.vector_norm(pull_D), on_it_P.sum()
        if pull <= held:
            break
        step_D = (1 - held / pull) * pull_D / weight_P.sum()
        v_D = v_D + step_D
        if torch.linalg.vector_norm(step_D) <= tolerance * scale:
            break
    return v_D.to(vectors_PD.dtype)


# Distances between all rows, and rows sorted coordinate by coordinate: what several rules begin with.


def pairwise_distances(vectors_PD: Tensor) -> Tensor:
    """`‖x_i − x_j‖` in float64, symmetric to the last bit.

    From differences and not through a Gram matrix: with rows 1000 times the others, that loses the small distances.
    """
    peers = len(vectors_PD)
    distance_PP = vectors_PD.new_zeros(peers, peers, dtype=torch.float64)
    above = torch.triu_indices(peers, peers, offset=1, device=vectors_PD.device)
    distance_PP[above[0], above[1]] = torch.pdist(vectors_PD.double())
    return distance_PP + distance_PP.T


def sorted_coordinates(vectors_PD: Tensor) -> Tensor:
    """Every column sorted, the smallest value first. On a CPU by NumPy, which takes a quarter of the time."""
    if vectors_PD.device.type == "cpu":
        return torch.from_numpy(np.sort(vectors_PD.detach().numpy(), axis=0))
    return vectors_PD.sort(dim=0).values


def _middle(sorted_PD: Tensor) -> Tensor:
    """The median of sorted columns. Halved before adding: the sum of two finite numbers may overflow."""
    peers = len(sorted_PD)
    return sorted_PD[(peers - 1) // 2] / 2 + sorted_PD[peers // 2] / 2


def nearest_to_median(sorted_PD: Tensor, keep: int) -> Tensor:
    """The mean of the `keep` values of each column that are nearest to its median.

    In a sorted column they stand side by side, so only the place where they begin is looked for. Of two such places, the one with
    the smaller values is taken.
    """
    median_D = _middle(sorted_PD)
    mean_D, farthest_D = sorted_PD[:keep].mean(dim=0), torch.full_like(median_D, float("inf"))
    for start in range(len(sorted_PD) - keep + 1):
        last = start + keep - 1
        far_D = torch.maximum(median_D - sorted_PD[start], sorted_PD[last] - median_D)
        nearer_D = far_D < farthest_D
        mean_D = torch.where(nearer_D, sorted_PD[start : last + 1].mean(dim=0), mean_D)
        farthest_D = torch.where(nearer_D, far_D, farthest_D)
    return mean_D


# Krum and Multi-Krum: trust the vectors that have many near neighbours (Blanchard et al. 2017).


def krum(vectors_PD: Tensor, *, byzantine: int, power: int = 2) -> Tensor:
    """The vector with the smallest sum of squared distances to its `P − byzantine − 2` nearest others.

    Blanchard's definition. Some libraries count one neighbour more; `byzantine + 1` there is `byzantine` here. Others add up
    fourth powers of the distances: `power=4`.
    """
    check_vectors(vectors_PD)
    return vectors_PD[int(_scores(vectors_PD, byzantine, power).argmin())].clone()


def multi_krum(vectors_PD: Tensor, *, byzantine: int, keep: int | None = None, power: int = 2) -> Tensor:
    """The mean of the `keep` vectors with the smallest Krum scores; `P − byzantine` of them by default."""
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, peers - 3, "multi-krum")
    keep = peers - byzantine if keep is None else keep
    if not 1 <= keep <= peers:
        raise AggregationError(f"multi-krum over {peers} rows can keep 1 to {peers} of them, got keep={keep}")
    best_rows = _scores(vectors_PD, byzantine, power).argsort(stable=True)[:keep]
    return vectors_PD[best_rows].mean(dim=0)


def _scores(vectors_PD: Tensor, byzantine: int, power: int) -> Tensor:
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, peers - 3, "krum")
    if power < 1:
        raise AggregationError(f"krum: power must be at least 1, got {power}")
    nearest_first_PP = pairwise_distances(vectors_PD).pow(power).sort(dim=1).values
    return nearest_first_PP[:, 1 : peers - byzantine - 1].sum(dim=1)  # column 0 is the row itself


def rfa(vectors_PD: Tensor, *, steps: int = 8, smoothing: float = 0.1) -> Tensor:
    """`z ← Σ w_i x_i / Σ w_i` with `w_i = 1/max(smoothing, ‖x_i − z‖)`, `steps` times from `z = 0`, in float64: the geometric
    median by a few smoothed Weiszfeld steps (Pillutla, Kakade and Harchaoui 2019).

    The limit withstands fewer than P/2 liars; a fixed number of steps from zero is nearer to zero than the limit, the more
    so the longer the liars' rows are. `smoothing` has the unit of the rows.
    """
    check_vectors(vectors_PD)
    if steps < 1 or not smoothing > 0:
        raise AggregationError(f"steps must be at least 1 and smoothing positive, got {steps} and {smoothing}")
    rows_PD = vectors_PD.double()
    z_D = torch.zeros_like(rows_PD[0])
    for _ in range(steps):
        weight_P = 1 / torch.linalg.vector_norm(rows_PD - z_D, dim=1).clamp(min=smoothing)
        z_D = (weight_P / weight_P.sum()) @ rows_PD
    return z_D.to(vectors_PD.dtype)


def bulyan(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Choose `P − 2·byzantine` rows, one after the other by Krum among those left; then, in every coordinate, the mean of
    the `P − 4·byzantine` chosen values nearest to their median (El Mhamdi, Guerraoui and Rouault 2018).

    Tolerates `4·byzantine + 3 ≤ P`. Krum among r rows counts `r − byzantine − 2` neighbours, and at least one.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 3) // 4 if byzantine else 0, "bulyan")
    chosen = _chosen(pairwise_distances(vectors_PD).square().cpu().numpy(), byzantine)
    return nearest_to_median(sorted_coordinates(vectors_PD[chosen]), peers - 4 * byzantine)


def _chosen(square_PP: Floats, byzantine: int) -> list[int]:
    """The rows that Krum picks in turn, each time among those that it has not yet picked."""
    left = list(range(len(square_PP)))
    chosen: list[int] = []
    while len(chosen) < len(square_PP) - 2 * byzantine:
        neighbours = max(1, len(left) - byzantine - 2)
        nearest_first = np.sort(square_PP[np.ix_(left, left)], axis=1)  # column 0 is the row itself
        best = int(nearest_first[:, 1 : 1 + neighbours].sum(axis=1).argmin())
        chosen.append(left.pop(best))
    return chosen


def mda(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """The mean of the `P − byzantine` rows with the smallest largest distance between two of them (Rousseeuw 1985; El Mhamdi et
    al. 2020).

    Tolerates `2·byzantine < P`. Of several such subsets, the first in the order of the rows. The search is exact; it is
    refused with an error where it would take more than `MOST_BRANCHES` branches.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "mda")
    kept = tightest_subset(pairwise_distances(vectors_PD), peers - byzantine)
    return vectors_PD[kept].mean(dim=0)


def tightest_subset(distance_PP: Tensor, keep: int) -> list[int]:
    """The `keep` rows of smallest diameter.

    Rows are far apart where their distance exceeds a threshold. A subset without such pairs is what is left after a cover of
    all far pairs by at most `P − keep` rows, and a cover that small is found by few branches. The least threshold with one
    is found by bisection among the distances.
    """
    peers = len(distance_PP)
    distances = distance_PP.tolist()
    thresholds = sorted({0.0, *(distances[i][j] for i in range(peers) for j in range(i))})
    search = _Search(distances)
    everyone, low, high = (1 << peers) - 1, 0, len(thresholds) - 1
    while low < high:
        middle = (low + high) // 2
        if search.among(everyone, keep, search.far(thresholds[middle])):
            high = middle
        else:
            low = middle + 1
    return search.first(keep, search.far(thresholds[low]))


class _Search:
    """Subsets without far pairs; a set of rows is a number, with a bit for each of them."""

    def __init__(self, distances: list[list[float]]) -> None:
        self.distances = distances
        self.branches = 0

    def far(self, threshold: float) -> list[int]:
        """For every row, the rows farther from it than the threshold."""
        return [sum(1 << j for j, distance in enumerate(row) if distance > threshold) for row in self.distances]

    def first(self, keep: int, far: list[int]) -> list[int]:
        """The subset that comes first in the order of the rows: each is taken if enough others can be had with it."""
        chosen: list[int] = []
        open_rows = (1 << len(far)) - 1
        for row in range(len(far)):
            if len(chosen) == keep:
                break
            if not open_rows >> row & 1:
                continue
            open_rows &= ~(1 << row)
            rest = open_rows & ~far[row]
            if self.among(rest, keep - len(chosen) - 1, far):
                chosen.append(row)
                open_rows = rest
        return chosen

    def among(self, rows: int, keep: int, far: list[int]) -> bool:
        """Whether `keep` of these rows can be had without a far pair: drop a row, or all that are far from it."""
        spare = rows.bit_count() - keep
        if spare < 0:
            return False
        self.branches += 1
        if self.branches > MOST_BRANCHES:
            raise AggregationError(
                f"mda: the subset of smallest diameter takes more than {MOST_BRANCHES:,} branches to find among "
                f"{len(far)} rows; use fewer rows, or another rule"
            )
        worst, most = -1, 0
        for row in range(len(far)):
            if rows >> row & 1 and (far[row] & rows).bit_count() > most:
                worst, most = row, (far[row] & rows).bit_count()
        if most == 0:
            return True
        if most * spare < self._far_pairs(rows, far):
            return False  # every row that is dropped settles at most `most` pairs
        if self.among(rows & ~(1 << worst), keep, far):
            return True
        return most > 1 and self.among(rows & ~far[worst], keep, far)

    def _far_pairs(self, rows: int, far: list[int]) -> int:
        return sum((far[row] & rows).bit_count() for row in range(len(far)) if rows >> row & 1) // 2


def meamed(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """In every coordinate, the mean of the `P − byzantine` values nearest to the median (Xie, Koyejo and Gupta 2018).

    Tolerates `2·byzantine < P`. A liar within the spread of the honest values stays in.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "meamed")
    return nearest_to_median(sorted_coordinates(vectors_PD), peers - byzantine)


def caf(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """CAF (Allouah, Guerraoui and Stephan 2025): weigh rows down along the direction in which they vary most, and give the mean
    at which they varied least.

    Weights `c` begin at 1. While `Σ c > P − 2·byzantine`: `μ` and `Σ` are the weighted mean and covariance, `v` the top
    eigenvector of `Σ`; then `c_i ← c_i·(1 − ⟨x_i − μ, v⟩²/max_j ⟨x_j − μ, v⟩²)`. The result is the `μ` with the smallest top
    eigenvalue. Tolerates `2·byzantine < P`, and needs no bound of the covariance. Eigenvectors are exact, from a P×P matrix.
    """
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, (peers - 1) // 2, "caf")
    gram_PP = _gram(vectors_PD)
    weight_P = np.ones(peers)
    best_P, least = weight_P / peers, float("inf")
    while weight_P.sum() > peers - 2 * byzantine:
        share_P = weight_P / weight_P.sum()
        variance, along_P = _top_direction(gram_PP, share_P)
        if variance < least:
            best_P, least = share_P, variance
        squares_P = along_P**2
        if not squares_P.max() > 0:
            break  # all rows that count are equal
        weight_P = weight_P * (1 - squares_P / squares_P.max())
    counted = np.flatnonzero(best_P)
    rows_PD = vectors_PD[torch.from_numpy(counted).to(vectors_PD.device)].double()
    mean_D: Tensor = torch.from_numpy(best_P[counted]).to(rows_PD) @ rows_PD
    return mean_D.to(vectors_PD.dtype)


def _top_direction(gram_PP: Floats, share_P: Floats) -> tuple[float, Floats]:
    """The largest variance of the weighted rows in any direction, and how far every row is from the mean along it.

    Rows without weight are left out of all sums, and count as lying on the mean: theirs would drown the others'.
    """
    counted = np.flatnonzero(share_P)
    gram_KK, share_K = gram_PP[np.ix_(counted, counted)], share_P[counted]
    to_mean_K = gram_KK @ share_K
    centred_KK = gram_KK - to_mean_K[:, None] - to_mean_K[None, :] + share_K @ to_mean_K
    root_K = np.sqrt(share_K)
    variance_K, direction_KK = np.linalg.eigh(root_K[:, None] * centred_KK * root_K[None, :])
    variance, along_P = float(variance_K[-1]), np.zeros_like(share_P)
    if variance > 0:
        along_P[counted] = centred_KK @ (root_K * direction_KK[:, -1]) / variance**0.5
    return variance, along_P


def _gram(vectors_PD: Tensor) -> Floats:
    """Inner products around the most central row: around zero or the mean, long rows would swallow the digits of the rest."""
    center = int(pairwise_distances(vectors_PD).median(dim=1).values.argmin())
    away_PD = vectors_PD.double() - vectors_PD[center].double()
    gram_PP: Floats = (away_PD @ away_PD.T).cpu().numpy()
    if not np.isfinite(gram_PP).all():
        raise AggregationError("caf: there are rows too long to be squared: scale the vectors down")
    return gram_PP
