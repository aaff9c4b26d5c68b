"""Rules that remember: those around another rule, clipping from the last aggregate, and Safeguard."""

import copy
import hashlib
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Self

import torch
from torch import Tensor

from troth.clip.centered_clip import check_tau, clip_weights
from troth.clip.exact import AggregationError, check_byzantine, check_vectors
from troth.workshop.rules.memory import Aggregator, AnyRule, RuleWithMemory, Setting, begin_rule, covered
from troth.workshop.rules.memoryless import pairwise_distances

# P peers, K nearest rows, S buckets, G peers still trusted, D coordinates


@dataclass(frozen=True)
class PreAggregation(RuleWithMemory):
    """Something done to the rows before another rule, which an option names: `nnm:rule=krum`. By itself it knows the names of the
    table; `around` gives it any rule."""

    rule: str
    _inner: AnyRule | None = field(default=None, init=False, repr=False, compare=False)

    def around(self, inner: AnyRule) -> Self:
        """The same with this rule inside, whatever its name."""
        made = copy.copy(self)
        object.__setattr__(made, "_inner", inner)
        return made

    @property
    def inner(self) -> AnyRule:
        if self._inner is not None:
            return self._inner
        from troth.workshop.rules.table import RULES  # not above: the table names the rules that extend this

        if self.rule not in RULES:
            raise AggregationError(f"the table of rules has no '{self.rule}'")
        row = RULES[self.rule]
        return row() if isinstance(row, type) else row

    def begin_inner(self, setting: Setting) -> Aggregator:
        """The inner aggregation of one run; its seed is its own."""
        return begin_rule(self.inner, replace(setting, seed=b"inner " + setting.seed))

    def most_inside(self, rows: int) -> int:
        """The most liars that the inner rule's guarantee covers among so many rows; fewer than half if it says nothing."""
        inner = self.inner
        most = None if inner.most is None else inner.most(rows)
        return (rows - 1) // 2 if most is None else most


# Nearest-neighbour mixing before another rule (Allouah et al. 2023).


def mix_nearest(vectors_PD: Tensor, *, byzantine: int) -> Tensor:
    """Replace every row by the mean of the `P − byzantine` rows nearest to it, itself among them."""
    check_vectors(vectors_PD)
    peers = len(vectors_PD)
    check_byzantine(byzantine, peers, peers - 1, "nnm")
    rows_PD, keep = vectors_PD.double(), peers - byzantine
    nearest_PK = pairwise_distances(vectors_PD).argsort(dim=1, stable=True)[:, :keep]
    near_PP = rows_PD.new_zeros(peers, peers).scatter_(1, nearest_PK, 1.0)
    return (near_PP @ rows_PD / keep).to(vectors_PD.dtype)


@dataclass(frozen=True)
class NearestNeighbourMixing(PreAggregation):
    """every row mixed with its n−b nearest, then another rule (Allouah et al. 2023)"""

    rule: str = "trimmed-mean"

    def begin(self, setting: Setting) -> Aggregator:
        return _Mixed(self, setting, self.begin_inner(setting))

    def most(self, peers: int) -> int:
        return min((peers - 1) // 2, self.most_inside(peers))


@dataclass
class _Mixed:
    rule: NearestNeighbourMixing
    setting: Setting
    inner: Aggregator

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        liars = covered(self.rule, self.setting.left(len(senders))).byzantine
        return self.inner(mix_nearest(vectors_PD, byzantine=liars), senders)


# Bucketing before another rule (Karimireddy, He and Jaggi 2022).


@dataclass(frozen=True)
class Bucketing(PreAggregation):
    """means of random buckets of rows, then another rule (Karimireddy et al. 2022)"""

    rule: str = "geometric-median"
    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise AggregationError(f"size must be at least 1, got {self.size}")

    def begin(self, setting: Setting) -> Aggregator:
        buckets = replace(setting, peers=-(-setting.peers // self.size))
        return _Bucketed(self.size, setting.seed, self.begin_inner(buckets))

    def most(self, peers: int) -> int:
        """A liar spoils one bucket, so there may be as many as the inner rule withstands among the buckets."""
        return self.most_inside(-(-peers // self.size))


@dataclass
class _Bucketed:
    size: int
    seed: bytes
    inner: Aggregator
    step: int = 0

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        check_vectors(vectors_PD)
        order = self._order(len(vectors_PD))
        self.step += 1
        buckets = [order[start : start + self.size] for start in range(0, len(order), self.size)]
        means_SD = torch.stack([vectors_PD[bucket].mean(dim=0) for bucket in buckets])
        return self.inner(means_SD, range(len(buckets)))

    def _order(self, rows: int) -> list[int]:
        """This step's permutation: rows sorted by a hash of the seed, so that it is the same on every machine."""

        def key(row: int) -> bytes:
            return hashlib.sha256(b"bucketing %d %d " % (self.step, row) + self.seed).digest()

        return sorted(range(rows), key=key)


# Centred clipping around the last aggregate, for workers with momentum (Karimireddy, He and Jaggi 2021).


@dataclass(frozen=True)
class CenteredClipMomentum(RuleWithMemory):
    """a few clipped steps from the last aggregate; for --momentum (Karimireddy et al. 2021)"""

    iterations: int = 1

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise AggregationError(f"iterations must be at least 1, got {self.iterations}")

    def begin(self, setting: Setting) -> Aggregator:
        check_tau(setting.tau)
        return _FromTheLast(self.iterations, setting.tau)


@dataclass
class _FromTheLast:
    iterations: int
    tau: float
    last_D: Tensor | None = None  # zero before the first step

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        """`v ← v + mean_i (x_i − v)·min(1, τ/‖x_i − v‖)`, so often as asked, from the last result."""
        check_vectors(vectors_PD)
        v_D = torch.zeros_like(vectors_PD[0]) if self.last_D is None else self.last_D
        for _ in range(self.iterations):
            away_PD = vectors_PD - v_D
            length_P = torch.linalg.vector_norm(away_PD, dim=1, dtype=torch.float64)
            scale_P = (clip_weights(length_P, self.tau) / len(vectors_PD)).to(away_PD)
            v_D = v_D + (scale_P[:, None] * away_PD).sum(dim=0)
        self.last_D = v_D
        return v_D.clone()


# SafeguardSGD: sums of gradients over two windows betray a persistent liar (Allen-Zhu, Ebrahimian, Li and Alistarh 2021).


_FACTOR = 2.0  # of the threshold: a peer this far from the median accumulator is removed (Algorithm 1, line 10)


class _Guarding(RuleWithMemory):
    """Thresholds of 0 are found from the rows themselves: see `_Window.threshold`. With `at_once` a peer that is found out does
    not count at that step already; as published it counts for the last time."""

    margin: float
    noise: float
    at_once: bool

    @property
    @abstractmethod
    def _windows(self) -> tuple[tuple[int, float], ...]:
        """Steps and threshold of each, the shortest first."""

    def __post_init__(self) -> None:
        steps, thresholds = zip(*self._windows, strict=True)
        if steps[0] < 1 or list(steps) != sorted(steps):
            raise AggregationError(f"windows need 1 ≤ short ≤ long, got {', '.join(map(str, steps))}")
        if not all(0 <= number < inf for number in (*thresholds, self.margin, self.noise)):
            raise AggregationError(f"thresholds, margin and noise must be 0 or positive, got {self}")

    def begin(self, setting: Setting) -> Aggregator:
        windows = [_Window(steps, threshold, self.margin) for steps, threshold in self._windows]
        return _Guard(setting, windows, self.noise, self.at_once)

    def most(self, peers: int) -> int:
        return (peers - 1) // 2


@dataclass(frozen=True)
class Safeguard(_Guarding):
    """the mean of peers whose sums over two windows agree; others are out for good (Allen-Zhu et al. 2021)"""

    short: int = 20
    long: int = 100
    short_threshold: float = 0.0
    long_threshold: float = 0.0
    margin: float = 3.0
    noise: float = 0.0
    at_once: bool = False

    @property
    def _windows(self) -> tuple[tuple[int, float], ...]:
        return (self.short, self.short_threshold), (self.long, self.long_threshold)


@dataclass(frozen=True)
class SafeguardSingle(_Guarding):
    """the same with one window (the warm-up of Allen-Zhu et al. 2021)"""

    window: int = 100
    threshold: float = 0.0
    margin: float = 3.0
    noise: float = 0.0
    at_once: bool = False

    @property
    def _windows(self) -> tuple[tuple[int, float], ...]:
        return ((self.window, self.threshold),)


class _Window:
    """Every peer's sum of `∇_k / |good_k|` since the window began, and the test of it."""

    def __init__(self, steps: int, threshold: float, margin: float) -> None:
        self.steps, self.fixed, self.margin = steps, threshold, margin
        self.sum_PD: Tensor | None = None
        self.variances: deque[float] = deque(maxlen=steps)

    def outliers(self, step: int, share_PD: Tensor, good: Sequence[int], majority: int, spread: float) -> set[int]:
        """Add a step, and tell which of the good peers are too far from the median one."""
        self.sum_PD = share_PD if self.sum_PD is None or step % self.steps == 0 else self.sum_PD + share_PD
        self.variances.append(spread**2)
        distance_GG = pairwise_distances(self.sum_PD[list(good)])
        median, _ = median_row(distance_GG, majority)
        far_G = (distance_GG[median] > _FACTOR * self.threshold).tolist()
        return {peer for peer, far in zip(good, far_G, strict=True) if far}

    @property
    def threshold(self) -> float:
        """As given; or else `margin·√(steps · mean of d²)`: the root is how far independent rows drift in a whole window.

        `d` is one step's distance from its most central row to the nearest majority, over its |good|, and the mean is over the
        last `steps` steps. More than half of the rows are honest, so liars can hardly raise it; but the majority shows nothing of
        the tail of honest gradients, which is what the margin is for.
        """
        return self.fixed or self.margin * (self.steps * sum(self.variances) / len(self.variances)) ** 0.5


def median_row(distance_GG: Tensor, majority: int) -> tuple[int, float]:
    """The row with the smallest distance within which a majority lies, itself counted, and that distance."""
    reach_G = distance_GG.sort(dim=1).values[:, min(majority, len(distance_GG)) - 1]
    reach, row = reach_G.min(dim=0)
    return int(row), float(reach)


class _Guard:
    """One run: the good peers, their windows, and those removed, with the step at which it was found out."""

    def __init__(self, setting: Setting, windows: list[_Window], noise: float, at_once: bool) -> None:
        self.setting, self._windows, self.noise, self.at_once = setting, windows, noise, at_once
        self.good = list(range(setting.peers))
        self.removed: dict[int, int] = {}
        self.step = 0

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        """The mean of the good peers' rows; then the windows decide who is good from now on."""
        check_vectors(vectors_PD)
        present = {peer: row for row, peer in enumerate(senders)}
        before = self.good
        self._judge(vectors_PD, present)
        counted = [peer for peer in (self.good if self.at_once else before) if peer in present]
        rows = [present[peer] for peer in counted] or list(present.values())  # nobody good is here: better than nothing
        aggregate_D = vectors_PD[rows].mean(dim=0)
        if self.noise:
            aggregate_D = aggregate_D + self.noise * self._gaussian(aggregate_D)
        self.step += 1
        return aggregate_D

    def _judge(self, vectors_PD: Tensor, present: dict[int, int]) -> None:
        share_PD = vectors_PD.new_zeros(self.setting.peers, vectors_PD.shape[1], dtype=torch.float64)
        # A row that is missing counts as zero: whoever stays away for long is as far from the others as one who sends it.
        share_PD[list(present)] = vectors_PD[list(present.values())].double() / len(self.good)
        majority = self.setting.peers // 2 + 1
        _, spread = median_row(pairwise_distances(share_PD[self.good]), majority)
        out = set[int]()
        for window in self._windows:
            out |= window.outliers(self.step, share_PD, self.good, majority, spread)
        self.removed |= dict.fromkeys(sorted(out), self.step)
        self.good = [peer for peer in self.good if peer not in out]

    def _gaussian(self, like_D: Tensor) -> Tensor:
        """Standard normal numbers of this step, from the setting's seed."""
        digest = hashlib.sha256(b"safeguard %d " % self.step + self.setting.seed).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        return torch.randn(like_D.shape, generator=generator, dtype=torch.float64).to(like_D)
