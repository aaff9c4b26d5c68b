"""Attacks, for files and scripts of one's own: `class Mine(GradientAttack)`. They live in `troth.workshop.attacks`.

`ATTACKS` is the table of all of them by the names that `simulate` knows; `make_attack` reads a spec like `sign-flip:scale=10`.
"""

from troth.workshop.attacks import (
    ATTACK,
    ATTACK_PLUGINS,
    ATTACKS,
    ALittleIsEnough,
    AttackError,
    AttackSchedule,
    Coalition,
    Collusion,
    DelayedGradient,
    Foresee,
    GradientAttack,
    InnerProduct,
    InnerProductSmall,
    LabelFlip,
    RandomDirection,
    SignFlip,
    alie_deviations,
    make_attack,
)

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
