"""Colluders behave until their schedule says otherwise."""

import pytest
import torch
from torch import Tensor

from troth.crypto import derive, stream
from troth.training import make_task
from troth.workshop.attacks import ATTACKS, AttackSchedule, Coalition, make_attack

ON_GRADIENTS = [name for name, kind in ATTACKS.items() if not kind.needs_protocol]

# B colluders, H honest peers, D coordinates
SEED = derive(0, "coalition")


def rows(step: int, count: int) -> Tensor:
    return torch.from_numpy(stream(3, step).normal(count * 20)).float().view(count, 20)


def coalition(spec: str, schedule: AttackSchedule, members: tuple[int, ...] = (1, 4)) -> Coalition:
    return Coalition([make_attack(s) for s in spec.split(" + ")], schedule, members, SEED)


@pytest.mark.parametrize("name", ON_GRADIENTS)
def test_while_it_waits_it_sends_the_honest_rows_bit_for_bit(name: str) -> None:
    liars = coalition(name, AttackSchedule(start=2, stop=4))
    task = make_task("digits")
    batch = task.batch(stream(0, "batch"))
    for step in range(6):
        own_BD, honest_HD = rows(step, 2), rows(100 + step, 3)
        own_BD[:, 0] = 0.0  # where the smallest lies go
        sent_BD = liars.gradients(step, own_BD.clone(), honest_HD)
        poisoned = liars.batch(step, task, batch, 4)
        attacking = step in (2, 3)
        assert liars.active(step) == attacking
        # Some lie in their batch, everyone else in what it sends; and one lies low where so few are watched so closely.
        poisons = name in ("label-flip", "backdoor", "sandbagger")
        assert torch.equal(sent_BD, own_BD) == (not attacking or poisons or name == "unwatched")
        assert (poisoned is batch) == (not attacking or not poisons)


def test_a_delayed_gradient_reaches_back_before_the_attack() -> None:
    liars = coalition("delayed-gradient:delay=3", AttackSchedule(start=4))
    sent = [liars.gradients(step, rows(step, 2), rows(0, 3)) for step in range(8)]
    for step in range(8):
        assert torch.equal(sent[step], rows(step - 3 if step >= 4 else step, 2)), f"step {step}"


def test_every_member_delays_its_own_gradients_also_when_it_missed_steps() -> None:
    liars = coalition("delayed-gradient:delay=1", AttackSchedule(), members=(1, 4))
    sent: dict[int, list[Tensor]] = {1: [], 4: []}
    for step, contributing in enumerate([(1, 4), (4,), (4, 1), (1,)]):
        own_BD = torch.stack([rows(10 * step + member, 1)[0] for member in contributing])
        for member, sent_D in zip(contributing, liars.gradients(step, own_BD, rows(0, 3), contributing), strict=True):
            sent[member].append(sent_D)
    steps_of = {1: [0, 0, 20], 4: [0, 0, 10]}  # ten times the step in which it was computed
    for member, steps in steps_of.items():
        for sent_D, step in zip(sent[member], steps, strict=True):
            assert torch.equal(sent_D, rows(step + member, 1)[0])


def test_a_coalition_of_nobody_never_attacks() -> None:
    assert not coalition("sign-flip", AttackSchedule(), members=()).active(0)


def test_several_attacks_are_dealt_among_the_members_evenly() -> None:
    liars = coalition("sign-flip:scale=2 + inflate:scale=3 + vanish", AttackSchedule(), members=(0, 2, 3, 5, 7, 8, 9))
    assert [type(liars.attack_of(member)).__name__ for member in liars.members] == [
        *("SignFlip", "Inflate", "Vanish"),
        *("SignFlip", "Inflate", "Vanish"),
        "SignFlip",
    ]


def test_each_sends_what_its_own_attack_makes_of_its_row() -> None:
    liars = coalition("sign-flip:scale=2 + inflate:scale=3 + vanish", AttackSchedule(start=1), members=(0, 2, 3, 5))
    own_BD, honest_HD = rows(0, 4), rows(1, 3)
    assert torch.equal(liars.gradients(0, own_BD, honest_HD), own_BD)
    sent_BD = liars.gradients(1, own_BD, honest_HD)
    assert torch.equal(sent_BD, own_BD * torch.tensor([-2.0, 3.0, 1.0, -2.0])[:, None])
    few_BD = liars.gradients(1, own_BD[:2], honest_HD, contributing=(5, 2))
    assert torch.equal(few_BD, own_BD[:2] * torch.tensor([-2.0, 3.0])[:, None])


def test_only_the_label_flipper_of_a_mixed_coalition_poisons_its_batch() -> None:
    liars = coalition("label-flip + sign-flip", AttackSchedule(), members=(1, 4, 6))
    task = make_task("digits")
    batch = task.batch(stream(0, "batch"))
    assert [liars.batch(0, task, batch, member) is batch for member in liars.members] == [False, True, False]


def test_two_squads_of_the_same_attack_are_two() -> None:
    liars = coalition("random-direction + random-direction", AttackSchedule(), members=(1, 4))
    first_D, second_D = liars.gradients(0, rows(0, 2), rows(1, 3))
    assert abs(float(torch.cosine_similarity(first_D, second_D, dim=0))) < 0.9


def test_members_are_kept() -> None:
    assert coalition("sign-flip", AttackSchedule(), members=(3, 5)).members == (3, 5)
