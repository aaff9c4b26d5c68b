"""Defences of prior work, one short file each: formula, tolerance, citation. `docs/defences` has a page for each of them."""

from troth.aggregation.baselines.bucketing import Bucketing
from troth.aggregation.baselines.bulyan import bulyan
from troth.aggregation.baselines.caf import caf
from troth.aggregation.baselines.centered_clip_momentum import CenteredClipMomentum
from troth.aggregation.baselines.mda import mda
from troth.aggregation.baselines.meamed import meamed
from troth.aggregation.baselines.nnm import NearestNeighbourMixing, mix_nearest
from troth.aggregation.baselines.pre_aggregation import PreAggregation
from troth.aggregation.baselines.rfa import rfa
from troth.aggregation.baselines.safeguard import Safeguard, SafeguardSingle

__all__ = [
    "Bucketing",
    "CenteredClipMomentum",
    "NearestNeighbourMixing",
    "PreAggregation",
    "Safeguard",
    "SafeguardSingle",
    "bulyan",
    "caf",
    "mda",
    "meamed",
    "mix_nearest",
    "rfa",
]
