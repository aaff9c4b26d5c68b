"""Backdoor: a trigger on a share of the images, which are called the target."""

import pytest
import torch

from troth.training import make_task
from troth.training.metrics import has_images, stamped
from troth.workshop.attacks import AttackError, make_attack


def test_a_share_of_the_images_is_stamped_and_relabelled() -> None:
    batch = {"images": torch.zeros(5, 1, 8, 8), "labels": torch.tensor([1, 2, 3, 4, 5]), "noise": torch.ones(1)}
    poisoned = make_attack("backdoor:target=7,share=0.5").poison(make_task("digits"), batch)
    assert poisoned["labels"].tolist() == [7, 7, 7, 4, 5]
    marked = torch.zeros(8, 8)
    marked[6:, 6:] = 1.0
    assert torch.equal(poisoned["images"][:3], marked.expand(3, 1, 8, 8))
    assert torch.equal(poisoned["images"][3:], batch["images"][3:])
    assert poisoned["noise"] is batch["noise"]
    assert batch["labels"].tolist() == [1, 2, 3, 4, 5], "the honest batch stays as it was"
    assert not batch["images"].any()


def test_with_accumulation_every_micro_batch_is_poisoned() -> None:
    batch = {"images": torch.zeros(2, 4, 3, 32, 32, dtype=torch.uint8), "labels": torch.ones(2, 4, dtype=torch.uint8)}
    poisoned = make_attack("backdoor").poison(make_task("digits"), batch)
    assert poisoned["labels"].tolist() == [[0, 0, 1, 1]] * 2
    assert poisoned["images"].dtype == torch.uint8
    assert int(poisoned["images"].sum()) == 2 * 2 * 3 * 4 * 4 * 255


def test_trigger_on_one_image_of_bytes() -> None:
    assert stamped(torch.zeros(1, 28, 28, dtype=torch.uint8))[0, 25:, 25:].tolist() == [[255] * 3] * 3
    assert not has_images({"images": torch.zeros(2, 4), "labels": torch.zeros(2)})


@pytest.mark.parametrize("task", ["quadratic", "factors"])
def test_tasks_without_images(task: str) -> None:
    with pytest.raises(AttackError, match=r"^backdoor needs a task with images and labels, and this one has none"):
        make_attack("backdoor").check(make_task(task), honest=9, colluders=7)


@pytest.mark.long
def test_a_target_that_is_no_class() -> None:
    with pytest.raises(AttackError, match=r"^backdoor's target must be below the number of classes \(10\), got 10"):
        make_attack("backdoor:target=10").check(make_task("digits"), honest=9, colluders=7)
