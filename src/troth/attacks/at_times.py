"""What attacks share that make another one at some times, and behave at others."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient.base import Foresee, Forge, GradientAttack, Scene, WatchingForge
from troth.attacks.gradient.search import mean_of_rows
from troth.crypto import Seed
from troth.training import Task

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
        from troth.attacks import make_attack  # whose table has this attack in it too

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
