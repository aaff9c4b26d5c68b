"""Robust aggregation rules: P vectors in, one vector out, and nothing about networks.

`RULES` is the table of all of them; `bind_rule` turns a name and its parameters into a function of the matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from troth.aggregation.centered_clip import (
    centered_clip_published,
    clip_residual,
    clip_weights,
    judge_center,
    residual_tolerance,
)
from troth.aggregation.centered_clip_fast import ClippedCenter, centered_clip, solve_centered_clip
from troth.aggregation.checks import AggregationError, check_vectors
from troth.aggregation.exact import (
    all_finite,
    exact_norm,
    flush_in_place,
    flush_subnormals,
    has_subnormals,
    ordinary,
    ordinary_norm,
    tree_sum,
)
from troth.aggregation.geometric_median import geometric_median
from troth.aggregation.krum import krum, multi_krum
from troth.aggregation.mean import mean
from troth.aggregation.median import median
from troth.aggregation.trimmed_mean import trimmed_mean

Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RuleEntry:
    """A rule, the names of its parameters, and one line about it."""

    function: Callable[..., Tensor]
    needs: tuple[str, ...]
    summary: str


RULES: dict[str, RuleEntry] = {
    "mean": RuleEntry(mean, (), "the plain average; a single liar moves it anywhere"),
    "median": RuleEntry(median, (), "the middle value of every coordinate (Yin et al. 2018)"),
    "trimmed-mean": RuleEntry(trimmed_mean, ("byzantine",), "the mean without the b extremes of each coordinate"),
    "geometric-median": RuleEntry(geometric_median, (), "the point with the smallest sum of distances"),
    "krum": RuleEntry(krum, ("byzantine",), "the one vector with the nearest neighbours (Blanchard et al. 2017)"),
    "multi-krum": RuleEntry(multi_krum, ("byzantine",), "the mean of the n−b vectors with the best Krum scores"),
    "centered-clip": RuleEntry(centered_clip, ("tau",), "every pull on the centre clipped to length tau"),
}


def bind_rule(entry: RuleEntry, *, byzantine: int, tau: float) -> Rule:
    """Make the rule a function of the vectors alone."""
    known: dict[str, Any] = {"byzantine": byzantine, "tau": tau}
    return partial(entry.function, **{name: known[name] for name in entry.needs})


__all__ = [
    "RULES",
    "AggregationError",
    "ClippedCenter",
    "Rule",
    "RuleEntry",
    "all_finite",
    "bind_rule",
    "centered_clip",
    "centered_clip_published",
    "check_vectors",
    "clip_residual",
    "clip_weights",
    "exact_norm",
    "flush_in_place",
    "flush_subnormals",
    "geometric_median",
    "has_subnormals",
    "judge_center",
    "krum",
    "mean",
    "median",
    "multi_krum",
    "ordinary",
    "ordinary_norm",
    "residual_tolerance",
    "solve_centered_clip",
    "tree_sum",
    "trimmed_mean",
]
