"""An attack that stops while one of the liars is about to be found: where one is caught, everyone audits."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from troth.attacks.gradient import Foresee, Forge, GradientAttack, Scene, WatchingForge
from troth.attacks.gradient.search import mean_of_rows
from troth.attacks.unwatched import check_inner, inner_attack
from troth.crypto import Seed
from troth.training import Task

# B colluders, H honest peers, D coordinates


@dataclass(frozen=True)
class Wary(GradientAttack):
    """make another `attack`, and behave in steps in which an honest member audits what one of the liars did in the last"""

    attack: str = "sign-flip"

    def __post_init__(self) -> None:
        check_inner(self.attack)

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        inner_attack(self.attack).check(task, honest=honest, colluders=colluders)

    def begin(self, seed: Seed) -> Forge:
        return self.begin_against(seed, mean_of_rows)

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        return _Pausing(inner_attack(self.attack).begin_against(seed, foresee))


class _Pausing(WatchingForge):
    """Lies unless a lie of the last step is being audited: that one is lost, and all others would be, for this step."""

    def __init__(self, forge: Forge) -> None:
        self._forge = forge
        self._watched = self._lied = False

    def before(self, scene: Scene) -> None:
        self._watched = scene.watched and self._lied
        self._lied = scene.active and not self._watched
        if isinstance(self._forge, WatchingForge):
            self._forge.before(scene)

    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        forged_BD = self._forge(members, own_BD, honest_HD)  # always, for the sake of its memory
        return own_BD if self._watched else forged_BD

    def after(self, sent_PD: Tensor) -> None:
        if isinstance(self._forge, WatchingForge):
            self._forge.after(sent_PD)
