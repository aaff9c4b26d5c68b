"""Attackers, wrapped around honest peers from outside. Production code never imports this package.

A new attack is one class beside what it lies about (`gradient/`, `behaviour/`), and one row of `ATTACKS`; a user's own is
a class in a file of theirs (docs/plug-ins.md).
"""

from troth.attacks.behaviour.absence import Leave, Vanish
from troth.attacks.behaviour.accusers import FalseAccusation, MassAccusation, SilentValidation
from troth.attacks.behaviour.burden import Complain, PadVotes
from troth.attacks.behaviour.coins import Grind
from troth.attacks.behaviour.coordinator import Adapt
from troth.attacks.behaviour.cover import CoveredAggregate
from troth.attacks.behaviour.cover_once import CoveredOnce
from troth.attacks.behaviour.jurors import LyingJury
from troth.attacks.behaviour.owners import WithheldAggregate, WrongAggregate
from troth.attacks.behaviour.reporters import WrongReport
from troth.attacks.behaviour.reroll import Reroll
from troth.attacks.behaviour.returns import BlockReturns
from troth.attacks.behaviour.strategist import Strategist
from troth.attacks.coalition import Coalition
from troth.attacks.colluder import Collusion
from troth.attacks.errors import AttackError
from troth.attacks.gradient.base import Foresee, GradientAttack
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
from troth.attacks.schedule import AttackSchedule
from troth.attacks.unwatched import Unwatched
from troth.attacks.wary import Wary
from troth.plugins import load, subclass_of

ATTACKS: dict[str, type[GradientAttack]] = {
    "sign-flip": SignFlip,
    "random-direction": RandomDirection,
    "label-flip": LabelFlip,
    "delayed-gradient": DelayedGradient,
    "ipm-0.6": InnerProduct,
    "ipm-0.1": InnerProductSmall,
    "alie": ALittleIsEnough,
    "wrong-aggregate": WrongAggregate,
    "wrong-report": WrongReport,
    "false-accusation": FalseAccusation,
    "covered-aggregate": CoveredAggregate,
    "withheld-aggregate": WithheldAggregate,
    "mass-accusation": MassAccusation,
    "silent-validation": SilentValidation,
    "lying-jury": LyingJury,
    "grind": Grind,
    "vanish": Vanish,
    "nudge": Nudge,
    "hide": Hide,
    "inflate": Inflate,
    "subnormal": Subnormal,
    "adapt": Adapt,
    "covered-once": CoveredOnce,
    "leave": Leave,
    "reroll": Reroll,
    "pad-votes": PadVotes,
    "complain": Complain,
    "block-returns": BlockReturns,
    "strategist": Strategist,
    "mimic": Mimic,
    "min-max": MinMax,
    "min-sum": MinSum,
    "gaussian": Gaussian,
    "zero": Zero,
    "not-finite": NotFinite,
    "bit-flip": BitFlip,
    "rop": RelocatedOrthogonal,
    "tailored": Tailored,
    "slow-poison": SlowPoison,
    "backdoor": Backdoor,
    "unwatched": Unwatched,
    "wary": Wary,
}


ATTACK_PLUGINS = "troth.attacks"  # entry points of installed packages
ATTACK = subclass_of(GradientAttack, "attack", "a subclass of troth.attacks.GradientAttack, or an object of one")


def make_attack(spec: str) -> GradientAttack:
    """`sign-flip:scale=10`, `my_attack.py`, `my_attack.py:Name:option=value`, or the name of a package's attack."""
    return load(spec, ATTACK, ATTACKS, ATTACK_PLUGINS)


__all__ = [
    "ATTACK",
    "ATTACKS",
    "ATTACK_PLUGINS",
    "ALittleIsEnough",
    "AttackError",
    "AttackSchedule",
    "Coalition",
    "Collusion",
    "DelayedGradient",
    "Foresee",
    "GradientAttack",
    "InnerProduct",
    "InnerProductSmall",
    "LabelFlip",
    "RandomDirection",
    "SignFlip",
    "alie_deviations",
    "make_attack",
]
