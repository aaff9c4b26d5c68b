"""Lies about gradients: rows that colluders send in place of those they computed.

Each attack is a frozen set of options. It may poison the batch before the gradient is computed, and it forges the rows
that the colluders send, knowing everything: their own gradients, those of all honest peers, and the defence. Honest code
knows nothing of it. A new attack is a class in one of these files and a row in `ATTACKS`.
"""

from troth.attacks.gradient.base import Foresee, Forge, GradientAttack, Scene, WatchingForge, positive
from troth.attacks.gradient.data import Backdoor, LabelFlip
from troth.attacks.gradient.noise import Gaussian, RandomDirection, SlowPoison
from troth.attacks.gradient.past import DelayedGradient, Mimic
from troth.attacks.gradient.scaled import BitFlip, Inflate, NotFinite, SignFlip, Zero
from troth.attacks.gradient.search import RelocatedOrthogonal, Tailored
from troth.attacks.gradient.small import Hide, Nudge, Subnormal
from troth.attacks.gradient.spread import (
    ALittleIsEnough,
    InnerProduct,
    InnerProductSmall,
    MinMax,
    MinSum,
    alie_deviations,
)

__all__ = [
    "ALittleIsEnough",
    "Backdoor",
    "BitFlip",
    "DelayedGradient",
    "Foresee",
    "Forge",
    "Gaussian",
    "GradientAttack",
    "Hide",
    "Inflate",
    "InnerProduct",
    "InnerProductSmall",
    "LabelFlip",
    "Mimic",
    "MinMax",
    "MinSum",
    "NotFinite",
    "Nudge",
    "RandomDirection",
    "RelocatedOrthogonal",
    "Scene",
    "SignFlip",
    "SlowPoison",
    "Subnormal",
    "Tailored",
    "WatchingForge",
    "Zero",
    "alie_deviations",
    "positive",
]
