"""An attack that stops while one of the liars is about to be found: where one is caught, everyone audits."""

from dataclasses import dataclass

from troth.attacks.at_times import AtTimes, ForgeAtTimes
from troth.attacks.gradient.base import Forge, Scene


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
