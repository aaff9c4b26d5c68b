"""Coalition: the colluders of one run, their attacks and the schedule."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from troth.attacks.errors import AttackError
from troth.attacks.gradient import GradientAttack
from troth.attacks.schedule import AttackSchedule
from troth.crypto import Seed, derive
from troth.plugins import name_of
from troth.training import Batch, Task

# B colluders, H honest peers, D coordinates


class Coalition:
    """Replaces the gradients that its members computed, in the steps of its schedule.

    With several attacks the members are dealt among them evenly; they are one coalition all the same, and shield each other.
    """

    def __init__(
        self, attacks: Sequence[GradientAttack], schedule: AttackSchedule, members: Sequence[int], seed: Seed
    ) -> None:
        self.members = tuple(members)
        self._attacks = tuple(attacks)
        self._squads = [self.members[k :: len(attacks)] for k in range(len(attacks))]
        self._schedule = schedule
        self._seed = seed
        self._forges = [attack.begin(derive(seed, "squad", k)) for k, attack in enumerate(attacks)]

    def active(self, step: int) -> bool:
        return bool(self.members) and self._schedule.active(step, self._seed)

    def attack_of(self, member: int) -> GradientAttack:
        return next(attack for attack, squad in zip(self._attacks, self._squads, strict=True) if member in squad)

    def batch(self, step: int, task: Task, batch: Batch, member: int) -> Batch:
        return self.attack_of(member).poison(task, batch) if self.active(step) else batch

    def gradients(
        self, step: int, own_BD: Tensor, honest_HD: Tensor, contributing: Sequence[int] | None = None
    ) -> Tensor:
        """Rows that the contributing members (all by default) send in place of those they computed."""
        members = self.members if contributing is None else contributing
        sent_BD = own_BD.clone()
        for attack, forge, squad in zip(self._attacks, self._forges, self._squads, strict=True):
            rows = torch.tensor([row for row, member in enumerate(members) if member in squad], dtype=torch.long)
            if len(rows):
                # Also while waiting: a delayed gradient needs a past.
                forged_BD = forge([members[row] for row in rows], own_BD[rows], honest_HD)
                sent_BD[rows] = _checked(attack, forged_BD, own_BD[rows])
        return sent_BD if self.active(step) else own_BD


def _checked(attack: GradientAttack, forged_BD: Any, own_BD: Tensor) -> Tensor:
    """Rows of the right number and length: a user's own attack may give anything. They need not be finite."""
    if isinstance(forged_BD, Tensor) and forged_BD.shape == own_BD.shape:
        return forged_BD.to(own_BD)
    got = f"one of {tuple(forged_BD.shape)}" if isinstance(forged_BD, Tensor) else type(forged_BD).__name__
    raise AttackError(
        f"attack {name_of(attack)} must forge a tensor of {tuple(own_BD.shape)} (a row for each liar), and gave {got}"
    )
