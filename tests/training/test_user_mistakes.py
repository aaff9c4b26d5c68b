"""What people get wrong in a task of their own, and the line that tells them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.training.examples import Lines
from troth.crypto import Stream
from troth.errors import OperatorError
from troth.training import Batch, Model, Problem, TaskError, check_pure, make_task

BODY = "    def model(self): ...\n    def batch(self, draw): ...\n    def loss(self, model, batch): ...\n"
HEAD = "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom troth.training import Task\n"


class Counting(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.in_place = in_place
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.seen.add_(1)
        else:
            self.seen = self.seen + 1
        out: Tensor = self.linear(x)
        return out


@dataclass(frozen=True)
class Counts(Lines):
    in_place: bool = True

    def model(self) -> nn.Module:
        return Counting(self.in_place)


@dataclass(frozen=True)
class ChangesItsBatch(Lines):
    def loss(self, model: Model, batch: Batch) -> Tensor:
        batch["x"].mul_(2)
        return super().loss(model, batch)


class Cosines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.angles = nn.Parameter(torch.cos(torch.randn(3, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.angles


@dataclass(frozen=True)
class CosinesAtFirst(Lines):
    def model(self) -> nn.Module:
        return Cosines()


@dataclass(frozen=True)
class Lazy(Lines):
    def model(self) -> nn.Module:
        return nn.LazyLinear(1)


@dataclass(frozen=True)
class TupleBatch(Lines):
    def batch(self, draw: Stream) -> Batch:
        return tuple(super().batch(draw).values())  # type: ignore[return-value]


@dataclass(frozen=True)
class LossPerRow(Lines):
    def loss(self, model: Model, batch: Batch) -> Tensor:
        out: Tensor = model(batch["x"]) - batch["y"]
        return out


@dataclass(frozen=True)
class Returns(Lines):
    what: str = "None"

    def loss(self, model: Model, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        returned: Tensor = eval(self.what, {"loss": loss, "torch": torch})
        return returned


@dataclass(frozen=True)
class NoSuchOptimizer(Lines):
    optimizer = "adamm"


@dataclass(frozen=True)
class NegativeRate(Lines):
    rate = -1.0


@dataclass(frozen=True)
class FailsInModel(Lines):
    def model(self) -> nn.Module:
        raise KeyError("width")


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Counts(in_place=True), "'seen'"),
        (Counts(in_place=False), "buffer 'seen'"),
        (ChangesItsBatch(), "changes its batch in place"),
        (
            CosinesAtFirst(),
            "parameter 'angles' come from 'cos', whose last bits differ between machines",
        ),
        (Lazy(), "parameter 'weight' has no shape yet"),
        (TupleBatch(), "a dict of tensors"),
        (LossPerRow(), r"must return one number .* returns shape .*: take the mean over the batch"),
        (Returns("None"), "returns nothing: is a return missing"),
        (Returns("(loss, 3)"), "returns a tuple: return the loss alone"),
        (Returns("loss.item()"), r"returns a float: leave out .item\(\)"),
        (Returns("loss.detach()"), r"does not depend on the parameters.*detached"),
        (Returns("torch.tensor(0.5)"), r"does not depend on the parameters.*detached"),
        (NoSuchOptimizer(), "Task.optimizer: unknown optimizer 'adamm': did you mean adamw"),
        (NegativeRate(), "Task.rate is a positive number, got -1.0"),
        (FailsInModel(), r"model\(\) fails at .*test_user_mistakes.py:\d+: KeyError: 'width'"),
    ],
)
def test_the_message_names_what_to_change(task: Lines, told: str) -> None:
    with pytest.raises(TaskError, match=told):
        check_pure(task)


def test_a_class_that_is_no_dataclass_has_no_options_to_set(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(f"{HEAD}class T(Task):\n{BODY}")
    assert type(make_task(str(tmp_path / "t.py"))).__name__ == "T"
    with pytest.raises(OperatorError, match="@dataclass"):
        make_task(f"{tmp_path / 't.py'}:width=3")


def test_postponed_annotations_and_aliases_are_fine(tmp_path: Path) -> None:
    text = f"from __future__ import annotations\n{HEAD}@dataclass(frozen=True)\nclass T(Task):\n    rate: ClassVar[float] = 0.5\n"
    (tmp_path / "t.py").write_text(f"{text}    width: int = 3\n{BODY}Main = T\n")
    task = make_task(f"{tmp_path / 't.py'}:width=5")
    assert vars(task) == {"width": 5}


@pytest.mark.parametrize("spec", ["digits:hidden=0", "digits-cnn:channels=0", "digits:batch_size=0"])
def test_nothing_has_a_width_of_zero(spec: str) -> None:
    with pytest.raises(OperatorError, match="at least 1"):
        make_task(spec)


def test_a_file_without_a_task_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("x = 1\n")
    with pytest.raises(OperatorError, match="defines 0 tasks"):
        make_task(str(tmp_path / "t.py"))


def test_a_sound_task_passes() -> None:
    check_pure(Lines())
    assert Problem(Lines()).why_one_by_one == ""
