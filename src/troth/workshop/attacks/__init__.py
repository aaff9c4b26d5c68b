"""Attackers, wrapped around honest peers from outside. Production code never imports this package.

A new attack is one class beside what it lies about, and one row of `ATTACKS`; a user's own is a class in a file of theirs
(docs/plug-ins.md).
"""

from troth.plugins import load, subclass_of
from troth.workshop.attacks import at_times, codes, cover, gradient_lies, heads, informed_lies, roles
from troth.workshop.attacks.base import AttackError, Collusion, Foresee, GradientAttack
from troth.workshop.attacks.coalition import AttackSchedule, Coalition
from troth.workshop.attacks.gradient_lies import DelayedGradient, LabelFlip, RandomDirection, SignFlip
from troth.workshop.attacks.informed_lies import ALittleIsEnough, InnerProduct, InnerProductSmall, alie_deviations

ATTACKS: dict[str, type[GradientAttack]] = {
    "sign-flip": gradient_lies.SignFlip,
    "random-direction": gradient_lies.RandomDirection,
    "label-flip": gradient_lies.LabelFlip,
    "delayed-gradient": gradient_lies.DelayedGradient,
    "ipm-0.6": informed_lies.InnerProduct,
    "ipm-0.1": informed_lies.InnerProductSmall,
    "alie": informed_lies.ALittleIsEnough,
    "wrong-aggregate": roles.WrongAggregate,
    "wrong-report": roles.WrongReport,
    "false-accusation": roles.FalseAccusation,
    "covered-aggregate": cover.CoveredAggregate,
    "withheld-aggregate": roles.WithheldAggregate,
    "mass-accusation": roles.MassAccusation,
    "silent-validation": roles.SilentValidation,
    "lying-jury": roles.LyingJury,
    "grind": roles.Grind,
    "vanish": roles.Vanish,
    "nudge": gradient_lies.Nudge,
    "hide": gradient_lies.Hide,
    "inflate": gradient_lies.Inflate,
    "subnormal": gradient_lies.Subnormal,
    "adapt": heads.Adapt,
    "covered-once": cover.CoveredOnce,
    "leave": roles.Leave,
    "reroll": heads.Reroll,
    "pad-votes": roles.PadVotes,
    "complain": roles.Complain,
    "block-returns": roles.BlockReturns,
    "strategist": heads.Strategist,
    "mimic": gradient_lies.Mimic,
    "min-max": informed_lies.MinMax,
    "min-sum": informed_lies.MinSum,
    "gaussian": gradient_lies.Gaussian,
    "zero": gradient_lies.Zero,
    "not-finite": gradient_lies.NotFinite,
    "bit-flip": gradient_lies.BitFlip,
    "rop": informed_lies.RelocatedOrthogonal,
    "tailored": informed_lies.Tailored,
    "slow-poison": gradient_lies.SlowPoison,
    "backdoor": gradient_lies.Backdoor,
    "sandbagger": gradient_lies.Sandbagger,
    "unwatched": at_times.Unwatched,
    "wary": at_times.Wary,
    "lean": codes.Lean,
    "bend": codes.Bend,
    "coarse": codes.Coarse,
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
