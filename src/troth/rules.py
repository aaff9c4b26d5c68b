"""Aggregation rules for one's own training loop: a matrix with one row for each peer in, one vector out.

>>> import torch
>>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.0], [-1e6, 1e6]])  # the last one lies
>>> troth.rules.centered_clip(vectors, tau=0.1).norm() < 2
tensor(True)
>>> troth.rules.mean(vectors).norm() > 1e5
tensor(True)

`RULES` is the table of all of them by the names that `simulate` knows. Some remember: `Safeguard().begin(setting)` makes an
aggregator, which is called with the rows and their senders at every step; a rule of one's own extends `RuleWithMemory`.
"""

from troth.clip.exact import AggregationError
from troth.clip.fast import centered_clip
from troth.workshop.rules.memory import Aggregator, RuleWithMemory, Setting
from troth.workshop.rules.memoryless import (
    bulyan,
    caf,
    geometric_median,
    krum,
    mda,
    meamed,
    mean,
    median,
    multi_krum,
    rfa,
    trimmed_mean,
)
from troth.workshop.rules.remembering import (
    Bucketing,
    CenteredClipMomentum,
    NearestNeighbourMixing,
    Safeguard,
    SafeguardSingle,
    mix_nearest,
)
from troth.workshop.rules.table import RULES

__all__ = [
    "RULES",
    "AggregationError",
    "Aggregator",
    "Bucketing",
    "CenteredClipMomentum",
    "NearestNeighbourMixing",
    "RuleWithMemory",
    "Safeguard",
    "SafeguardSingle",
    "Setting",
    "bulyan",
    "caf",
    "centered_clip",
    "geometric_median",
    "krum",
    "mda",
    "meamed",
    "mean",
    "median",
    "mix_nearest",
    "multi_krum",
    "rfa",
    "trimmed_mean",
]
