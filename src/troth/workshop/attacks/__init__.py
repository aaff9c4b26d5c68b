"""Attackers, wrapped around honest peers from outside. Production code never imports this package.

A new attack is one class beside what it lies about (`gradient/`, `behaviour/`), and one row of `ATTACKS`; a user's own is
a class in a file of theirs (docs/plug-ins.md).
"""

from troth.plugins import load, subclass_of
from troth.workshop.attacks.at_times import Unwatched, Wary
from troth.workshop.attacks.base import AttackError, Collusion, Foresee, GradientAttack
from troth.workshop.attacks.burden import Complain, PadVotes
from troth.workshop.attacks.coalition import AttackSchedule, Coalition
from troth.workshop.attacks.cover import CoveredAggregate, CoveredOnce
from troth.workshop.attacks.gradient_lies import (
    Backdoor,
    BitFlip,
    DelayedGradient,
    Gaussian,
    Hide,
    Inflate,
    LabelFlip,
    Mimic,
    NotFinite,
    Nudge,
    RandomDirection,
    SignFlip,
    SlowPoison,
    Subnormal,
    Zero,
)
from troth.workshop.attacks.heads import Adapt, Reroll, Strategist
from troth.workshop.attacks.informed_lies import (
    ALittleIsEnough,
    InnerProduct,
    InnerProductSmall,
    MinMax,
    MinSum,
    RelocatedOrthogonal,
    Tailored,
    alie_deviations,
)
from troth.workshop.attacks.roles import (
    BlockReturns,
    FalseAccusation,
    Grind,
    Leave,
    LyingJury,
    MassAccusation,
    SilentValidation,
    Vanish,
    WithheldAggregate,
    WrongAggregate,
    WrongReport,
)

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
