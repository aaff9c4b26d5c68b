"""Attacks that make another one at some times, and behave at others."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from troth.crypto import Seed
from troth.training import Task
from troth.workshop.attacks.base import ColludingChannel, Foresee, Forge, GradientAttack, Scene, WatchingForge

# B colluders, H honest peers, P contributors, D coordinates


@dataclass(frozen=True)
class AtTimes(GradientAttack):
    """Makes another `attack` in some steps."""

    attack: str = "sign-flip"

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self._inner()
        poisons = type(inner).poison is not GradientAttack.poison
        if poisons or inner.needs_protocol or inner.behaviour is not ColludingChannel or isinstance(inner, AtTimes):
            raise ValueError(f"attack must be one that forges gradients and does nothing else, got '{self.attack}'")

    def _inner(self) -> GradientAttack:
        from troth.workshop.attacks import make_attack  # whose table has this attack in it too

        return make_attack(self.attack)

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        self._inner().check(task, honest=honest, colluders=colluders)

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        return _ForgeAtTimes(self._inner().begin_against(seed, foresee), self.lying())

    @abstractmethod
    def lying(self) -> Callable[[Scene], bool]:
        """Decides, in each step of one run, whether to lie."""


class _ForgeAtTimes(WatchingForge):
    """Lets another function forge in every step, for the sake of its memory, and uses its rows at times."""

    def __init__(self, forge: Forge, lying: Callable[[Scene], bool]) -> None:
        self._forge = forge
        self._lying = lying
        self._lies = False

    def before(self, scene: Scene) -> None:
        self._lies = self._lying(scene)
        if isinstance(self._forge, WatchingForge):
            self._forge.before(scene)

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        forged_BD = self._forge(members, own_BD, honest_HD)
        return forged_BD if self._lies else own_BD

    def after(self, sent_PD: Tensor) -> None:
        if isinstance(self._forge, WatchingForge):
            self._forge.after(sent_PD)


@dataclass(frozen=True)
class Unwatched(AtTimes, shares=("chance",)):
    """make another `attack` only while the chance that an honest validator audits a contributor is at most `chance`"""

    chance: float = 0.05
    validators: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.validators < 0:
            raise ValueError(f"validators must not be negative, got {self.validators}")

    def lying(self) -> Callable[[Scene], bool]:
        """The chance is `m/(n − m)·h/n`: m of n members validate, each audits one of n − m contributors, and h of n are honest.

        Liars know all contributors, so n is their number and m. The honest are never banned, so h is the largest number of them
        seen so far.
        """
        most_honest = 0

        def lies(scene: Scene) -> bool:
            nonlocal most_honest
            most_honest = max(most_honest, len(scene.honest))
            honest = min(1.0, most_honest / (scene.contributors + self.validators))
            return self.validators / scene.contributors * honest <= self.chance

        return lies


@dataclass(frozen=True)
class Wary(AtTimes):
    """make another `attack`, and behave in steps in which an honest member audits what one of the liars did in the last"""

    def lying(self) -> Callable[[Scene], bool]:
        """That lie is lost, and so would be all others with this step's: where one is caught, everyone audits."""
        lied = False

        def lies(scene: Scene) -> bool:
            nonlocal lied
            watched = scene.watched and lied
            lied = scene.active and not watched
            return not watched

        return lies
