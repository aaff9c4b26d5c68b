"""What attacks share that make another one at some times, and behave at others."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from troth.crypto import Seed
from troth.training import Task
from troth.workshop.attacks.base import ColludingChannel, Foresee, Forge, GradientAttack, Scene, WatchingForge
from troth.workshop.attacks.informed_lies import mean_of_rows

# B colluders, H honest peers, D coordinates


@dataclass(frozen=True)
class AtTimes(GradientAttack):
    """Makes another `attack`, when its forging function says so."""

    attack: str = "sign-flip"

    def __post_init__(self) -> None:
        inner = self._inner()
        poisons = type(inner).poison is not GradientAttack.poison
        if poisons or inner.needs_protocol or inner.behaviour is not ColludingChannel or isinstance(inner, AtTimes):
            raise ValueError(f"attack must be one that forges gradients and does nothing else, got '{self.attack}'")

    def _inner(self) -> GradientAttack:
        from troth.workshop.attacks import make_attack  # whose table has this attack in it too

        return make_attack(self.attack)

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        self._inner().check(task, honest=honest, colluders=colluders)

    def begin(self, seed: Seed) -> Forge:
        return self.begin_against(seed, mean_of_rows)

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        return self.around(self._inner().begin_against(seed, foresee))

    @abstractmethod
    def around(self, forge: Forge) -> "ForgeAtTimes":
        """The forging function of this attack, around that of the other."""


class ForgeAtTimes(WatchingForge):
    """Lets another function forge in every step, for the sake of its memory, and uses its rows at times."""

    def __init__(self, forge: Forge) -> None:
        self._forge = forge

    @abstractmethod
    def lies(self, honest: int) -> bool:
        """Whether to lie in this step, with so many honest contributors."""

    def before(self, scene: Scene) -> None:
        if isinstance(self._forge, WatchingForge):
            self._forge.before(scene)

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        forged_BD = self._forge(members, own_BD, honest_HD)
        return forged_BD if self.lies(len(honest_HD)) else own_BD

    def after(self, sent_PD: Tensor) -> None:
        if isinstance(self._forge, WatchingForge):
            self._forge.after(sent_PD)


# An attack made only while it is unlikely to be looked at.


@dataclass(frozen=True)
class Unwatched(AtTimes):
    """make another `attack` only while the chance that an honest validator audits a contributor is at most `chance`"""

    chance: float = 0.05
    validators: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.chance <= 1:
            raise ValueError(f"chance must be above 0 and at most 1, got {self.chance}")
        if self.validators < 0:
            raise ValueError(f"validators must not be negative, got {self.validators}")
        super().__post_init__()

    def around(self, forge: Forge) -> ForgeAtTimes:
        return _LyingLow(self, forge)


class _LyingLow(ForgeAtTimes):
    """The chance is `m/(n − m)·h/n`: m of n members validate, each audits one of n − m contributors, and h of n are honest.

    It knows all contributors, so n is their number and m. The honest are never banned, so h is the largest number
    of them seen so far.
    """

    def __init__(self, options: Unwatched, forge: Forge) -> None:
        super().__init__(forge)
        self._options = options
        self._honest = 0
        self._contributors = 0

    def before(self, scene: Scene) -> None:
        self._contributors = scene.contributors
        super().before(scene)

    def lies(self, honest: int) -> bool:
        self._honest = max(self._honest, honest)
        members = self._contributors + self._options.validators
        chance = self._options.validators / self._contributors * min(1.0, self._honest / members)
        return chance <= self._options.chance


# An attack that stops while one of the liars is about to be found: where one is caught, everyone audits.


@dataclass(frozen=True)
class Wary(AtTimes):
    """make another `attack`, and behave in steps in which an honest member audits what one of the liars did in the last"""

    def around(self, forge: Forge) -> ForgeAtTimes:
        return _Pausing(forge)


class _Pausing(ForgeAtTimes):
    """Lies unless a lie of the last step is being audited: that one is lost, and so would be all others with this step's."""

    def __init__(self, forge: Forge) -> None:
        super().__init__(forge)
        self._watched = self._lied = False

    def before(self, scene: Scene) -> None:
        self._watched = scene.watched and self._lied
        self._lied = scene.active and not self._watched
        super().before(scene)

    def lies(self, honest: int) -> bool:
        return not self._watched
