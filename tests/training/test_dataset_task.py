"""A task out of a dataset."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from troth.crypto import derive, stream
from troth.training import Problem, TaskError, check_pure
from troth.training.dataset_task import task

X = torch.from_numpy(stream(0, "x").normal(60)).float().view(20, 3)
PAIRS = TensorDataset(X, (X.sum(dim=1) > 0).long())


def classify(model: Any, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def linear() -> nn.Module:
    return nn.Linear(3, 2)


class TestItems:
    @pytest.mark.parametrize(
        ("data", "loss"),
        [
            (PAIRS, classify),
            ([[row.numpy(), int(row.sum() > 0)] for row in X], classify),
            ([{"x": row.tolist(), "y": int(row.sum() > 0)} for row in X], lambda m, b: classify(m, (b["x"], b["y"]))),
            (X, lambda m, b: m(b).square().mean()),
        ],
        ids=["dataset", "lists", "dicts", "tensor"],
    )
    def test_of_every_form(self, data: Any, loss: Any) -> None:
        made = task(model=linear, data=data, loss=loss, batch_size=5)
        check_pure(made)
        problem = Problem(made)
        batch = problem.task_part(problem.batch(derive(0, "x")))
        assert {tensor.shape[0] for tensor in batch.values()} == {5}

    def test_rows_follow_from_the_seed(self) -> None:
        made = task(model=linear, data=PAIRS, loss=classify, batch_size=4)
        rows = stream(3, "s").integers(20, 4)
        assert torch.equal(made.batch(stream(3, "s"))["item0"], X[torch.from_numpy(rows)])

    def test_augmentation_by_a_global_generator_is_found(self) -> None:
        class Shaky(TensorDataset):
            def __getitem__(self, index: int) -> Any:
                x, y = super().__getitem__(index)  # type: ignore[no-untyped-call]
                return x + np.random.normal(), y

        with pytest.raises(TaskError, match=r"global generator of numpy.random \(.*test_dataset_task.py:\d+\)"):
            check_pure(task(model=linear, data=Shaky(*PAIRS.tensors), loss=classify))

    def test_items_that_do_not_stack_are_told_so(self) -> None:
        ragged = [torch.ones(1 + k) for k in range(9)]
        with pytest.raises(TaskError, match=r"do not fit together: .*; pad them"):
            Problem(task(model=linear, data=ragged, loss=classify))
        with pytest.raises(TaskError, match="'item1' of an item of the dataset is no tensor"):
            Problem(task(model=linear, data=[(1, "one")], loss=classify))


class TestEvaluation:
    def test_a_held_out_dataset_gives_the_mean_loss_of_its_items(self) -> None:
        made = task(model=linear, data=PAIRS, loss=classify, batch_size=8, evaluate=PAIRS)
        problem = Problem(made)
        flat_D = problem.initial(0)
        with torch.no_grad():
            right = float(classify(problem.module(flat_D), PAIRS.tensors))
        assert problem.evaluate(flat_D)["loss"] == pytest.approx(right, rel=1e-5)

    def test_a_function_gives_metrics_of_its_own(self) -> None:
        made = task(
            model=linear, data=PAIRS, loss=classify, evaluate=lambda model: {"weight": float(model.weight.sum())}
        )
        problem = Problem(made)
        assert problem.evaluate(torch.ones(8)) == {"weight": 6.0}


class TestOptions:
    def test_are_the_tasks(self) -> None:
        made = task(
            model=linear, data=PAIRS, loss=classify, steps=7, rate=0.5, tau=2.0, classes=2, accumulate=2, name="mine"
        )
        assert (made.steps, made.rate, made.tau, made.classes, made.accumulate) == (7, 0.5, 2.0, 2, 2)
        assert repr(made) == "mine(items=20, batch_size=8)"
        assert hash(made) == hash(made)
        assert "labels" in made.batch(stream(0, "x"))  # for the attack that flips them

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            ({"model": nn.Linear(3, 2)}, "`model` is a function"),
            ({"data": []}, "`data` is empty"),
            ({"evaluate": []}, "`evaluate` is empty"),
            ({"data": iter(())}, "`data` needs a length"),
            ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ],
    )
    def test_wrong_ones_name_their_field(self, wrong: dict[str, Any], told: str) -> None:
        with pytest.raises(TaskError, match=told):
            task(**{"model": linear, "data": PAIRS, "loss": classify, **wrong})


def test_gradients_can_be_clipped() -> None:
    free, short = (task(model=linear, data=PAIRS, loss=classify, clip_norm=most) for most in (None, 0.01))
    flat_D, batch = Problem(free).initial(0), Problem(free).batch(derive(0))
    assert Problem(free).gradient(flat_D, batch)[1].norm() > 0.01
    assert float(Problem(short).gradient(flat_D, batch)[1].norm()) == pytest.approx(0.01)
