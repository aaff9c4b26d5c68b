"""How far the gradients of other hardware are from this machine's, and what a way to compute them costs.

Two tails make measuring hard. A ReLU that flips is rare and large: most audits of a small network differ by
10⁻⁶ of a gradient, one in some 10⁵ by half of it. And a batch that is fitted already has a gradient near zero, made of
differences such as `p − 1`, of which rounding is a large share. The largest of a few hundred comparisons shows neither:

* *Jumps* are provoked. Inputs are shaken `STRESS` times as hard as hardware does; jumps are then that many times as
  frequent, and no larger. Smooth deviations grow too, but not in the second difference `g(2v) − 2g(v) + g(0)`, in which a
  jump keeps its size. So n comparisons stand for `n·STRESS` audits, and the largest of them is taken as it is.
* *Smooth* deviations are extrapolated to N audits: the largest of n, times `(N/n)^γ`, with Hill's estimate of γ from the
  largest tenth (Weissman 1978). N is such that a run of `_AUDITS` audits, every part of each counted, has a risk of `_RISK`.

Then `h = 2·(the larger of both)/CONVICT`. A juror convicts above CONVICT·h, and a liar who is drawn as validator accuses
whenever jurors would convict, so every honest pair must stay below that, not just below ACCUSE·h; twice, since two other
machines may lie on opposite sides of this one.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, inf, log, sqrt
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.crypto import Digest, Seed, derive, side_by_side, tagged_hash
from troth.protocol.core.parts import Bounds, part_bounds
from troth.protocol.step.audits import CONVICT, deviations
from troth.protocol.wire.messages import ReportNumbers
from troth.protocol.wire.primitives import Primitives
from troth.training.determinism import threads
from troth.training.hardware import STRESS, GradientJob, Machine, bent_gradient, gradient_on
from troth.training.optimizers import bound, cosine, make_optimizer
from troth.training.problem import Problem
from troth.training.task import TaskError, with_options

# S seeds, P parts (and peers), D coordinates, d of them in a part, K projections

# The ways in which this machine can compute a gradient, some of them as another machine would.


Gradients = Callable[[Tensor, Sequence[Seed]], Tensor]  # parameters, seeds -> gradients_SD


class Way(NamedTuple):
    """One way to compute gradients, to be compared with the plain one."""

    name: str
    gradients: Gradients
    timed: bool = True  # imitations take as long as imitating takes


def ways_of(problem: Problem, peers: int) -> list[Way]:
    """Everything that this machine can do differently, and imitations of another machine."""
    task, device = problem.task, problem.device
    ways: list[Way] = []
    if device.type == "cpu":
        ways += [Way(name, _with_threads(count, problem)) for name, count in _thread_counts()]
    ways.append(Way("one by one", one_at_a_time(Problem(task, device=device, one_by_one=True))))
    together = Problem(task, device=device)
    if not together.why_one_by_one:
        ways.append(Way(f"{peers} in one call", _in_one_call(together)))
    if task.autocast is None:  # else it would measure the mixed precision, which all machines share
        same_way = bool(problem.why_one_by_one)  # batched as the plain one is, so that their times compare
        wide = Problem(task, device=device, dtype=torch.float64, one_by_one=same_way)
        ways.append(Way("float64", one_at_a_time(wide)))
    ways.append(Way("shaken inputs", one_at_a_time(problem, "shaken"), timed=False))
    if (other := _other_device(problem)) is not None:
        ways.append(Way(other, one_at_a_time(Problem(task, device=other))))
    if task.tf32 and device.type == "cuda":  # as GPUs compute that lack it
        ways.append(Way("TF32 off", one_at_a_time(Problem(with_options(task, tf32=False), device=device))))
    return ways


def bent(problem: Problem) -> Gradients:
    """Gradients that are off by their jumps under stress, and by nothing else."""
    return lambda parameters_D, seeds: torch.stack([bent_gradient(problem, parameters_D, seed) for seed in seeds])


def one_at_a_time(problem: Problem, hardware: str = "") -> Gradients:
    """Compute as `TrainingWork.gradient_now` does, rounded to the float32 that travels."""

    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        here_D = parameters_D.to(problem.device, problem.dtype)
        computed = (gradient_on(problem, hardware, here_D, seed) for seed in seeds)
        return torch.stack([each_D.cpu().float() for each_D in computed])

    return gradients


def _other_device(problem: Problem) -> str | None:
    if not torch.cuda.is_available():
        return None
    return "cpu" if problem.device.type == "cuda" else "cuda"


def _thread_counts() -> list[tuple[str, int]]:
    cores = os.cpu_count() or 1
    return [("1 thread", 1), *([(f"{cores} threads", cores)] if cores > 1 else [])]


def _in_one_call(problem: Problem) -> Gradients:
    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        return problem.gradients(parameters_D, [problem.batch(seed) for seed in seeds])[1].cpu()

    return gradients


def _with_threads(count: int, problem: Problem) -> Gradients:
    def gradients(parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        with threads(count):
            return one_at_a_time(problem)(parameters_D, seeds)

    return gradients


_PROJECTIONS = 16
_AUDITS = 5000  # audits in one run …
_RISK = 0.01  # … in which an honest peer may be convicted with this probability
_JUMPS = "jumps"
_BEYOND = 100.0  # exp of this is beyond any deviation, and still a number
_FEW = 1 << 18  # coordinates whose signs are kept to multiply with
_TAIL = 0.1  # share of the deviations that tell how the tail falls off


@dataclass(frozen=True)
class Spread:
    """Distances of one way to compute gradients from this machine's own. A comparison is the worst part of one gradient."""

    name: str
    comparisons: int
    median: float
    largest: float
    same: int  # so many of the gradients were the same, bit by bit
    ms: float | None = field(default=None, compare=False)  # for one gradient, the median of several calls

    @property
    def same_bits(self) -> bool:
        return self.same == self.comparisons


@dataclass(frozen=True)
class Measurement:
    """Result of `measure`."""

    ways: tuple[Spread, ...]
    jumps: Spread  # under stress
    noise: float  # σ: the usual distance of one peer's gradient from the mean of all
    deviation: float  # h, for a run with several classes; may be infinite
    plain_ms: float = field(default=0.0, compare=False)  # for one gradient as a peer computes it

    @property
    def stands_for(self) -> int:
        """How many audits the provoked jumps stand for."""
        return self.jumps.comparisons * STRESS


def measure(
    problem: Problem,
    *,
    peers: int = 16,
    seeds: int = 100,
    points: int = 5,
    steps: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Compare this machine's gradients with those of other ways, at points evenly spread over a training run.

    A whole run (`steps`, by default the task's own), since deviations grow relative to gradients, which shrink.

    Measured with `troth doctor --task T` on 2 arm64 cores, largest of 500:

        task                     shaken inputs   float64   jumps    h
        quadratic                4.8e-6          1.3e-7    1.0e-6   7.5e-6
        digits:activation=tanh   7.6e-6          7.1e-6    1.7e-5   3.1e-5
        digits                   1.2e-5          1.3e-5    0.49     none will do
    """
    steps = problem.task.steps if steps is None else steps
    _check_range("peers", peers, 2, problem.size)
    _check_range("seeds", seeds, 2)
    _check_range("points", points, 1)
    _check_range("steps", steps, 1)
    ways = [*ways_of(problem, peers), Way(_JUMPS, bent(problem), timed=False)]
    tallies = {way.name: _Tally(way) for way in ways}
    plain = _Tally(Way("", one_at_a_time(problem)))
    bounds, measured = part_bounds(problem.size, peers), _evenly(points, steps)
    noises: list[float] = []
    done, total = 0, steps + 1 + len(measured) * seeds * len(ways)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress:
            on_progress(done, total)

    for step, parameters_D, gradients_PD in _training(problem, peers, steps):
        advance(1)
        if step not in measured:
            continue
        surroundings = _Surroundings.of(gradients_PD, bounds)
        noises.append(surroundings.noise)
        for first in range(0, seeds, peers):  # as many at a time as a run holds in memory
            some = [derive(0, "doctor", step, k) for k in range(first, min(first + peers, seeds))]
            own_SD = plain.gradients(parameters_D, some)
            _check_finite(own_SD, step)
            compare = _Comparison(surroundings, tagged_hash("troth/doctor/1", *some))
            for tally in tallies.values():
                tally.compare(tally.gradients(parameters_D, some), own_SD, compare)
                advance(len(some))

    jumps = tallies.pop(_JUMPS).spread()
    largest = max(jumps.largest, *(extrapolated(tally.found) for tally in tallies.values()))
    spreads = tuple(tally.spread() for tally in tallies.values())
    return Measurement(spreads, jumps, float(np.median(noises)), 2 * largest / CONVICT, plain.ms)


def distances(problem: Problem, other: Machine, *, peers: int = 16, seeds: int = 100, steps: int = 100) -> list[float]:
    """Deviations that auditors of this machine would see in another's gradients, after so many steps of training."""
    bounds = part_bounds(problem.size, peers)
    _check_range("peers", peers, 2, problem.size)
    for step, parameters_D, gradients_PD in _training(problem, peers, steps):  # noqa: B007 – the last of them
        pass
    surroundings, here, found = _Surroundings.of(gradients_PD, bounds), one_at_a_time(problem), list[float]()
    for first in range(0, seeds, peers):
        some = [derive(0, "distances", step, k) for k in range(first, min(first + peers, seeds))]
        jobs = [GradientJob(parameters_D, other.problem.batch(seed)) for seed in some]
        said_SD = torch.stack([gradient_D.cpu() for _, gradient_D in other.gradients(jobs)])
        compare = _Comparison(surroundings, tagged_hash("troth/doctor/1", *some))
        found += compare.worst_parts(said_SD, here(parameters_D, some))
    return found


def _check_range(name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        raise TaskError(f"`{name}` must be at least {least}{f' and at most {most:,}' if most else ''}, got {value:,}")


class _Tally:
    """Comparisons of one way with the plain one, and how long its gradients took."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.found: list[float] = []
        self._same = 0
        self._times_ms: list[float] = []

    def gradients(self, parameters_D: Tensor, seeds: Sequence[Seed]) -> Tensor:
        start = perf_counter()
        gradients_SD = self.way.gradients(parameters_D, seeds)  # on the CPU at last: nothing is left to wait for
        self._times_ms.append(1e3 * (perf_counter() - start) / len(seeds))
        return gradients_SD

    def compare(self, said_SD: Tensor, own_SD: Tensor, comparison: "_Comparison") -> None:
        self.found += comparison.worst_parts(said_SD, own_SD)
        self._same += sum(map(torch.equal, said_SD.float(), own_SD))

    @property
    def ms(self) -> float:
        return float(np.median(self._times_ms))

    def spread(self) -> Spread:
        found, way = self.found, self.way
        median, largest = float(np.median(found)), max(found)
        return Spread(way.name, len(found), median, largest, self._same, self.ms if way.timed else None)


@dataclass(frozen=True)
class _Surroundings:
    """What a step of a run without liars gives auditors to compare with."""

    center_D: NDArray[np.float64]
    bounds: Bounds
    usual_P: NDArray[np.float64]  # the lower median, for every part, of the peers' distances from the aggregate
    noise: float  # the usual distance of one peer's gradient from the mean of all

    @classmethod
    def of(cls, gradients_PD: Tensor, bounds: Bounds) -> "_Surroundings":
        center_D = gradients_PD.cpu().double().mean(dim=0).numpy()
        away = [row_D.cpu().double().numpy() - center_D for row_D in gradients_PD]
        norms_PP = np.sqrt([np.add.reduceat(away_D * away_D, bounds[:-1]) for away_D in away])
        noise = sqrt(float(np.square(norms_PP).sum()) / len(away))
        return cls(center_D, bounds, _usual_norms(norms_PP), noise)


class _Comparison:
    """Reports as peers would make them, and their deviation. Clipping is left out, since the comparison undoes it."""

    def __init__(self, surroundings: _Surroundings, key: Digest) -> None:
        self._around = surroundings
        self._key, size = key, len(surroundings.center_D)
        self._few_KD = Primitives().projection(key, _PROJECTIONS, size) if size <= _FEW else None
        self._tau_P = np.full(len(surroundings.bounds) - 1, inf)

    def worst_parts(self, said_SD: Tensor, own_SD: Tensor) -> list[float]:
        return side_by_side(lambda pair: self._worst_part(*pair), list(zip(said_SD, own_SD, strict=True)))

    def _worst_part(self, said_D: Tensor, own_D: Tensor) -> float:
        """The deviation that an auditor would see."""
        said, own = self._report(said_D), self._report(own_D)
        return float(deviations(said, own, own_D, self._around.bounds, self._tau_P, self._around.usual_P).max())

    def _report(self, gradient_D: Tensor) -> ReportNumbers:
        own_D = gradient_D.double().numpy()
        away_D, bounds = own_D - self._around.center_D, self._around.bounds
        products = [self._projected(start, away_D[start:stop]) for start, stop in pairwise(bounds)]
        lengths_P, norms_P = (np.sqrt(np.add.reduceat(each_D * each_D, bounds[:-1])) for each_D in (own_D, away_D))
        return ReportNumbers(lengths_P, norms_P, np.stack(products))

    def _projected(self, start: int, part_d: NDArray[np.float64]) -> NDArray[np.float64]:
        """A part's projections; all signs of a large gradient at once would take more memory than the gradients."""
        if self._few_KD is not None:
            products_K: NDArray[np.float64] = self._few_KD[:, start : start + len(part_d)] @ part_d
            return products_K
        products_1K = Primitives().project(self._key, _PROJECTIONS, len(self._around.center_D), start, part_d[None])
        return products_1K.reshape(-1)


def _usual_norms(norms_PP: NDArray[np.float64]) -> NDArray[np.float64]:
    usual_P: NDArray[np.float64] = np.sort(norms_PP, axis=0)[(len(norms_PP) - 1) // 2]
    return usual_P


def _training(problem: Problem, peers: int, steps: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Steps, parameters and gradients of a run without liars, in which the mean is good enough."""
    optimizer = bound(make_optimizer(problem.task.optimizer), problem.layout)
    rates = cosine(problem.task.rate, max(steps, 1))
    parameters_D = problem.initial(0)
    state = optimizer.start(parameters_D)
    for step in range(steps + 1):
        batches = [problem.batch(derive(0, "doctor", "training", step, peer)) for peer in range(peers)]
        gradients_PD = problem.gradients(parameters_D, batches)[1]
        _check_finite(gradients_PD, step)
        yield step, parameters_D, gradients_PD
        if step < steps:
            parameters_D, state = optimizer.update(parameters_D, gradients_PD.mean(dim=0), state, rates[step])


def _check_finite(gradients: Tensor, step: int) -> None:
    if not bool(torch.isfinite(gradients).all()):
        raise TaskError(f"training diverges at step {step}: there is nothing to measure; lower the task's rate")


def _evenly(points: int, steps: int) -> set[int]:
    return {round(steps * k / max(points - 1, 1)) for k in range(points)}


def extrapolated(found: Sequence[float]) -> float:
    """The deviation to expect once in `_AUDITS/_RISK` audits (Weissman's estimate), never less than the largest seen."""
    ordered = np.sort(np.array(found))
    top = ordered[-max(2, round(_TAIL * len(ordered))) :]
    top = top[top > 0]
    if not len(top) or np.isinf(top[-1]):
        return float(ordered[-1])
    slope = float(np.log(top / top[0]).mean())
    return float(top[-1]) * exp(min(slope * log(max(1.0, _AUDITS / _RISK / len(ordered))), _BEYOND))
