"""A coalition that forges rows, step after step, for tests."""

from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor

from troth.crypto import derive, stream
from troth.workshop.attacks import AttackSchedule, Coalition, Foresee, make_attack
from troth.workshop.attacks.informed_lies import mean_of_rows

# B colluders, H honest peers, D coordinates


def forger(spec: str, members: int = 3, foresee: Foresee = mean_of_rows, start: int = 0) -> Callable[..., Tensor]:
    """Rows that the members of a fresh coalition send, step after step."""
    attacks = [make_attack(one) for one in spec.split(" + ")]
    coalition = Coalition(attacks, AttackSchedule(start=start), range(members), derive(0, "coalition"), foresee)
    step = count()

    def forge(own_BD: Tensor, honest_HD: Tensor, honest: Sequence[int] | None = None) -> Tensor:
        return coalition.gradients(next(step), own_BD, honest_HD, honest=honest)

    return forge


def rows(name: str, count: int, size: int = 12) -> Tensor:
    """In float64, with a mean that is not zero."""
    return torch.from_numpy(stream(5, name).normal(count * size)).view(count, size) + 0.5
