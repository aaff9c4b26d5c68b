"""Colluders of one run: an attack, its schedule, and the little they remember."""

from collections.abc import Sequence

from torch import Tensor

from troth.attacks.gradient import GradientAttack
from troth.attacks.schedule import AttackSchedule
from troth.crypto import Seed
from troth.training import Batch, Task

# B colluders, H honest peers, D coordinates


class Coalition:
    """Turns what its members computed into what they send, at the steps its schedule names."""

    def __init__(self, attack: GradientAttack, schedule: AttackSchedule, members: Sequence[int], seed: Seed) -> None:
        self.members = tuple(members)
        self._attack = attack
        self._schedule = schedule
        self._seed = seed
        self._forge = attack.begin(seed)

    def active(self, step: int) -> bool:
        return bool(self.members) and self._schedule.active(step, self._seed)

    def batch(self, step: int, task: Task, batch: Batch) -> Batch:
        return self._attack.poison(task, batch) if self.active(step) else batch

    def gradients(
        self, step: int, own_BD: Tensor, honest_HD: Tensor, contributing: Sequence[int] | None = None
    ) -> Tensor:
        """What the contributing members (all of them by default) send in place of what they computed."""
        members = self.members if contributing is None else contributing
        forged_BD = self._forge(members, own_BD, honest_HD)  # also while waiting: a delayed gradient needs a past
        return forged_BD if self.active(step) else own_BD
