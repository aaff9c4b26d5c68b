"""Coalition: the colluders of one run, their attacks and the schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troth.crypto import Seed, derive, stream
from troth.plugins import name_of
from troth.training import Batch, Task
from troth.training.weights import Layout
from troth.workshop.attacks.base import AttackError, Foresee, Forge, GradientAttack, Scene, WatchingForge, forging
from troth.workshop.attacks.informed_lies import mean_of_rows

# B colluders, H honest peers, D coordinates


@dataclass(frozen=True)
class AttackSchedule:
    """When a coalition attacks; at other times its members behave.

    From `start` to before `stop`, at every `every`-th step, each time with this probability (one draw for all).
    """

    start: int = 0
    every: int = 1
    probability: float = 1.0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0:
            raise AttackError(f"`attack_start` must not be negative, got {self.start}")
        if self.every < 1:
            raise AttackError(f"`attack_every` must be at least 1, got {self.every}")
        if not 0 < self.probability <= 1:
            raise AttackError(f"`attack_probability` must be above 0 and at most 1, got {self.probability}")
        if self.stop is not None and self.stop <= self.start:
            raise AttackError(f"`attack_stop` must be after `attack_start`, got {self.stop} and {self.start}")

    def active(self, step: int, seed: Seed) -> bool:
        if step < self.start or (self.stop is not None and step >= self.stop):
            return False
        if (step - self.start) % self.every:
            return False
        return self.probability == 1.0 or float(stream(seed, "attack schedule", step).uniform(1)[0]) < self.probability


class Coalition:
    """Replaces the gradients that its members computed, in the steps of its schedule.

    With several attacks the members are dealt among them evenly; they are one coalition all the same, and shield each other.
    """

    def __init__(
        self,
        attacks: Sequence[GradientAttack],
        schedule: AttackSchedule,
        members: Sequence[int],
        seed: Seed,
        foresee: Foresee = mean_of_rows,
        watched: Callable[[], bool] = lambda: False,
    ) -> None:
        """`foresee`: what the defence would make of rows, those of contributing members first; by default their mean.

        `watched`: whether the roles of this step, which are public, have an honest member audit one of them.
        """
        self.members = tuple(members)
        self._attacks = tuple(attacks)
        self._squads = [self.members[k :: len(attacks)] for k in range(len(attacks))]
        self._schedule = schedule
        self._seed = seed
        self._foresee = foresee
        self._watched = watched
        self.layout: Layout | None = None  # of the model's parameters, for attacks that ask for it
        self._beside: tuple[list[int], Tensor] | None = None  # places of the squad that forges, and all rows so far
        self._forges: list[Forge] = [
            attack.begin_against(derive(seed, "squad", k), self._foresee_among_others)
            for k, attack in enumerate(attacks)
        ]

    def active(self, step: int) -> bool:
        return bool(self.members) and self._schedule.active(step, self._seed)

    def attack_of(self, member: int) -> GradientAttack:
        return next(attack for attack, squad in zip(self._attacks, self._squads, strict=True) if member in squad)

    def batch(self, step: int, task: Task, batch: Batch, member: int) -> Batch:
        return self.attack_of(member).poison(task, batch) if self.active(step) else batch

    def local_steps(self, step: int, steps: int, member: int) -> int:
        return self.attack_of(member).local_steps(steps) if self.active(step) else steps

    def gradients(
        self,
        step: int,
        own_BD: Tensor,
        honest_HD: Tensor,
        contributing: Sequence[int] | None = None,
        honest: Sequence[int] | None = None,
    ) -> Tensor:
        """Rows that the contributing members (all by default) send in place of those they computed.

        `honest`: numbers of those whose rows `honest_HD` are; by default their places.
        """
        members = self.members if contributing is None else contributing
        numbers = range(len(honest_HD)) if honest is None else honest
        scene = Scene(numbers, len(own_BD) + len(honest_HD), self.active(step), self._watched())
        sent_BD = own_BD.clone()
        for attack, forge, squad in zip(self._attacks, self._forges, self._squads, strict=True):
            rows = [row for row, member in enumerate(members) if member in squad]
            if rows:
                self._beside = rows, sent_BD
                if isinstance(forge, WatchingForge):
                    forge.before(scene)
                # Also while waiting: a delayed gradient needs a past.
                with forging(self.layout):
                    forged_BD = forge([members[row] for row in rows], own_BD[rows], honest_HD)
                sent_BD[rows] = _checked(attack, forged_BD, own_BD[rows])
        if not scene.active:
            sent_BD = own_BD
        self._tell(members, sent_BD, honest_HD)
        return sent_BD

    def _tell(self, members: Sequence[int], sent_BD: Tensor, honest_HD: Tensor) -> None:
        for forge, squad in zip(self._forges, self._squads, strict=True):
            rows = [row for row, member in enumerate(members) if member in squad]
            if rows and isinstance(forge, WatchingForge):
                self._beside = rows, sent_BD
                forge.after(torch.cat([sent_BD[rows], honest_HD]))

    def _foresee_among_others(self, rows_PD: Tensor) -> Tensor:
        """What the defence would make of a squad's rows and the honest ones, among what other squads send."""
        assert self._beside is not None
        rows, sent_BD = self._beside
        all_BD = sent_BD.clone()
        all_BD[rows] = rows_PD[: len(rows)]
        return self._foresee(torch.cat([all_BD, rows_PD[len(rows) :]]))


def _checked(attack: GradientAttack, forged_BD: Any, own_BD: Tensor) -> Tensor:
    """Rows of the right number and length: a user's own attack may give anything. They need not be finite."""
    if isinstance(forged_BD, Tensor) and forged_BD.shape == own_BD.shape:
        return forged_BD.to(own_BD)
    got = f"one of {tuple(forged_BD.shape)}" if isinstance(forged_BD, Tensor) else type(forged_BD).__name__
    raise AttackError(
        f"attack {name_of(attack)} must forge a tensor of {tuple(own_BD.shape)} (a row for each liar), and gave {got}"
    )
