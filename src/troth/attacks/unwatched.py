"""An attack made only while it is unlikely to be looked at."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from troth.aggregation import Memory, memory_of, recall_into
from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient import Foresee, Forge, GradientAttack, Scene, WatchingForge
from troth.attacks.gradient.search import mean_of_rows
from troth.crypto import Seed
from troth.training import Task

# B colluders, H honest peers, P contributors, D coordinates


@dataclass(frozen=True)
class Unwatched(GradientAttack):
    """make another `attack` only while the chance that an honest validator audits a contributor is at most `chance`"""

    attack: str = "sign-flip"
    chance: float = 0.05
    validators: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.chance <= 1:
            raise ValueError(f"chance must be above 0 and at most 1, got {self.chance}")
        if self.validators < 0:
            raise ValueError(f"validators must not be negative, got {self.validators}")
        check_inner(self.attack)

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        inner_attack(self.attack).check(task, honest=honest, colluders=colluders)

    def begin(self, seed: Seed) -> Forge:
        return self.begin_against(seed, mean_of_rows)

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        return _LyingLow(self, inner_attack(self.attack).begin_against(seed, foresee))


def inner_attack(spec: str) -> GradientAttack:
    """The attack that another one makes at times."""
    from troth.attacks import make_attack  # whose table has the other one in it too

    return make_attack(spec)


def check_inner(spec: str) -> None:
    """Refuse attacks that do more than forge gradients, and those that make others."""
    inner = inner_attack(spec)
    poisons = type(inner).poison is not GradientAttack.poison
    nested = hasattr(inner, "attack")
    if poisons or nested or inner.needs_protocol or inner.behaviour is not ColludingChannel:
        raise ValueError(f"attack must be one that forges gradients and does nothing else, got '{spec}'")


class _LyingLow(WatchingForge):
    """The chance is `m/(n − m)·h/n`: m of n members validate, each audits one of n − m contributors, and h of n are honest.

    It knows all contributors, so n is their number and m. The honest are never banned, so h is the largest number
    of them seen so far.
    """

    def __init__(self, options: Unwatched, forge: Forge) -> None:
        self._options = options
        self._forge = forge
        self._honest = 0
        self._contributors = 0

    def before(self, scene: Scene) -> None:
        self._contributors = scene.contributors
        if isinstance(self._forge, WatchingForge):
            self._forge.before(scene)

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        self._honest = max(self._honest, len(honest_HD))
        forged_BD = self._forge(members, own_BD, honest_HD)  # always, for the sake of its memory
        return forged_BD if self._chance() <= self._options.chance else own_BD

    def _chance(self) -> float:
        members = self._contributors + self._options.validators
        return self._options.validators / self._contributors * min(1.0, self._honest / members)

    def after(self, sent_PD: Tensor) -> None:
        if isinstance(self._forge, WatchingForge):
            self._forge.after(sent_PD)

    def memory(self) -> Memory:
        return {"honest": self._honest, "inner": memory_of(self._forge)}

    def recall(self, memory: Memory) -> None:
        self._honest = memory["honest"]
        recall_into(self._forge, memory["inner"])
