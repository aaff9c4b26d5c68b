"""An attack made only while it is unlikely to be looked at."""

from dataclasses import dataclass

from troth.attacks.at_times import AtTimes, ForgeAtTimes
from troth.attacks.gradient.base import Forge, Scene


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
