"""The table of all rules, by the names that commands and scenarios know."""

from troth.clip.fast import centered_clip
from troth.workshop.rules.memory import RuleEntry, RuleWithMemory
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
)


def _below_half(peers: int) -> int:
    return (peers - 1) // 2


def _krum(peers: int) -> int:
    return (peers - 3) // 2


def _bulyan(peers: int) -> int:
    return max(0, (peers - 3) // 4)


RULES: dict[str, RuleEntry | type[RuleWithMemory]] = {
    "mean": RuleEntry(mean, (), "the plain average; a single liar moves it anywhere"),
    "median": RuleEntry(median, (), "the middle value of every coordinate (Yin et al. 2018)", _below_half),
    "trimmed-mean": RuleEntry(
        trimmed_mean, ("byzantine",), "the mean without the b extremes of each coordinate", _below_half
    ),
    "meamed": RuleEntry(
        meamed, ("byzantine",), "the mean of the n−b values nearest to each median (Xie et al. 2018)", _below_half
    ),
    "geometric-median": RuleEntry(geometric_median, (), "the point with the smallest sum of distances", _below_half),
    "rfa": RuleEntry(rfa, (), "the geometric median in 8 smoothed steps from zero (Pillutla et al. 2019)", _below_half),
    "krum": RuleEntry(
        krum, ("byzantine",), "the one vector with the nearest neighbours (Blanchard et al. 2017)", _krum
    ),
    "multi-krum": RuleEntry(multi_krum, ("byzantine",), "the mean of the n−b vectors with the best Krum scores", _krum),
    "bulyan": RuleEntry(
        bulyan,
        ("byzantine",),
        "n−2b rows by Krum, then the values nearest to the median (El Mhamdi et al. 2018)",
        _bulyan,
    ),
    "mda": RuleEntry(
        mda, ("byzantine",), "the mean of the n−b rows of smallest diameter (El Mhamdi et al. 2020)", _below_half
    ),
    "caf": RuleEntry(caf, ("byzantine",), "rows weighed down where they vary most (Allouah et al. 2025)", _below_half),
    "nnm": NearestNeighbourMixing,
    "bucketing": Bucketing,
    "centered-clip": RuleEntry(centered_clip, ("tau",), "every pull on the centre clipped to length tau", _below_half),
    "centered-clip-momentum": CenteredClipMomentum,
    "safeguard": Safeguard,
    "safeguard-single": SafeguardSingle,
}
