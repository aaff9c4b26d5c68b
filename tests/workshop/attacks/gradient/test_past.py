"""Mimic (Karimireddy et al. 2022): its power iteration, recomputed, and its target."""

import numpy as np
import torch
from torch import Tensor

from tests.workshop.attacks.gradient.forging import forger, rows
from troth.crypto import derive, stream

# B colluders, H honest peers, D coordinates
OWN_BD = rows("own", 3)


def targets(history: list[Tensor], warmup: int) -> list[int]:
    """Rows that are copied, in the words of the paper's section on the attack, row by row in numpy."""
    z = stream(derive(derive(0, "coalition"), "squad", 0), "mimic").normal(history[0].shape[1])
    z = z / np.linalg.norm(z)
    mu, chosen = np.zeros(len(z)), []
    for t, honest in enumerate(h.numpy() for h in history):
        if t < warmup:
            mu = (t * mu + honest.mean(axis=0)) / (t + 1)
            turned = sum(((g - mu) @ z) * (g - mu) for g in honest)
            z = t / (t + 1) * z + turned / np.linalg.norm(turned) / (t + 1)
            z = z / np.linalg.norm(z)
            target = max(range(len(honest)), key=lambda i: honest[i] @ z)
        chosen.append(target)
    return chosen


def test_the_target_is_the_farthest_in_the_direction_of_most_variance_and_stays() -> None:
    for warmup in (1, 4):
        history = [rows(f"step {step}", 6) for step in range(9)]
        right = targets(history, warmup)
        forge = forger(f"mimic:warmup={warmup}")
        for honest_HD, target in zip(history, right, strict=True):
            assert torch.equal(forge(OWN_BD, honest_HD), honest_HD[target].expand(3, -1))
        assert len(set(right[warmup - 1 :])) == 1
    assert len(set(right)) > 1, "it looks for its target during the warm-up"


def test_one_direction_with_all_the_variance_is_found_at_once() -> None:
    honest_HD = torch.zeros(5, 12, dtype=torch.float64)
    honest_HD[:, 3] = torch.tensor([0.0, 1.0, -7.0, 0.5, 0.2])
    sent_D = forger("mimic")(OWN_BD, honest_HD)[0]
    assert sent_D[3] in (-7.0, 1.0), "an end of the line; which one depends on the first z"


def test_a_target_is_a_peer_and_not_a_place_among_the_rows() -> None:
    first_HD = rows("first", 4)
    forge = forger("mimic")
    place = targets([first_HD], 1)[0]
    numbers = [10, 11, 12, 13]
    forge(OWN_BD, first_HD, numbers)
    target = numbers[place]
    others = [number for number in numbers if number != target]
    moved = [*others[:1], target, *others[1:]]
    assert torch.equal(forge(OWN_BD, first_HD * 2, moved)[0], first_HD[1] * 2)
    without = forge(OWN_BD, first_HD[:3], others)
    assert any(torch.equal(without[0], row_D) for row_D in first_HD[:3]), "while it validates, somebody else is copied"
