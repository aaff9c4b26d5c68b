"""Robust aggregation rules: P vectors in, one vector out, and nothing about networks.

`RULES` is the table of all of them; `begin_rule` makes one run's aggregation of a rule, and `bind_rule` turns a plain one and
its parameters into a function of the matrix.
"""

from troth.aggregation.baselines import (
    Bucketing,
    CenteredClipMomentum,
    NearestNeighbourMixing,
    PreAggregation,
    Safeguard,
    SafeguardSingle,
    bulyan,
    caf,
    mda,
    meamed,
    mix_nearest,
    rfa,
)
from troth.aggregation.centered_clip import (
    centered_clip_published,
    clip_residual,
    clip_weights,
    judge_center,
    residual_tolerance,
)
from troth.aggregation.centered_clip_fast import (
    ClippedCenter,
    acquitted_center,
    centered_clip,
    solve_centered_clip,
)
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
from troth.aggregation.memory import (
    Aggregator,
    AnyRule,
    RuleEntry,
    RuleWithMemory,
    Setting,
    begin_rule,
    covered,
)
from troth.aggregation.table import RULES, Rule, bind_rule
from troth.aggregation.trimmed_mean import trimmed_mean

__all__ = [
    "RULES",
    "AggregationError",
    "Aggregator",
    "AnyRule",
    "Bucketing",
    "CenteredClipMomentum",
    "ClippedCenter",
    "NearestNeighbourMixing",
    "PreAggregation",
    "Rule",
    "RuleEntry",
    "RuleWithMemory",
    "Safeguard",
    "SafeguardSingle",
    "Setting",
    "acquitted_center",
    "all_finite",
    "begin_rule",
    "bind_rule",
    "bulyan",
    "caf",
    "centered_clip",
    "centered_clip_published",
    "check_vectors",
    "clip_residual",
    "clip_weights",
    "covered",
    "exact_norm",
    "flush_in_place",
    "flush_subnormals",
    "geometric_median",
    "has_subnormals",
    "judge_center",
    "krum",
    "mda",
    "meamed",
    "mean",
    "median",
    "mix_nearest",
    "multi_krum",
    "ordinary",
    "ordinary_norm",
    "residual_tolerance",
    "rfa",
    "solve_centered_clip",
    "tree_sum",
    "trimmed_mean",
]
