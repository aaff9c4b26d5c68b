"""Tasks by name, with options, and out of a user's own file."""

from pathlib import Path

import pytest
import torch

from troth.crypto import Stream, derive, stream
from troth.specs import SpecError
from troth.training import TASKS, Problem, check_pure, make_task
from troth.training.task import Batch, Task, draw_batch
from troth.training.tasks.small_images import Digits, DigitsCNN
from troth.training.tasks.synthetic import Quadratic

IMPORTS = """
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from torch import nn
from troth.training import Task
from troth.training.tasks.small_images import Digits  # another's task, which does not count
"""
OWN = """
@dataclass(frozen=True)
class Mine(Task):
    '''fit a line'''
    slope: float = 3.0
    points: int = 8

    rate = 0.7
    steps = 17

    def model(self):
        return nn.Linear(1, 1)

    def batch(self, draw):
        x = torch.from_numpy(draw.uniform(self.points)).float()[:, None]
        return {"x": x, "y": self.slope * x + 1}

    def loss(self, model, batch):
        return F.mse_loss(model(batch["x"]), batch["y"])
"""


def write(folder: Path, source: str) -> str:
    path = folder / "my_task.py"
    path.write_text(source, encoding="utf-8")
    return str(path)


def test_by_name() -> None:
    assert make_task("digits") == Digits()
    assert make_task("digits-cnn:channels=2,batch_size=3") == DigitsCNN(channels=2, batch_size=3)
    assert make_task("quadratic:dimension=10,noise=0.5,condition=1") == Quadratic(10, 1.0, 0.5)


def test_options_reach_the_task() -> None:
    small = Problem(make_task("digits:hidden=3,batch_size=5"))
    assert small.size == 64 * 3 + 3 + 3 * 10 + 10
    assert small.batch(derive(0))["images"].shape == (5, 1, 8, 8)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_says_what_it_is_and_suggests_settings(name: str) -> None:
    kind = TASKS[name]
    assert kind.__doc__
    assert kind.steps > 0
    assert kind.rate > 0
    assert kind.tau > 0


def test_digits_keep_training_and_test_images_apart() -> None:
    from troth.training.tasks.small_images import _digits

    train, train_labels, test, test_labels = _digits()
    assert len(train) == len(train_labels) == 1437
    assert len(test) == len(test_labels) == 360
    assert set(test_labels.tolist()) == set(range(10))
    assert abs(float(train.mean())) < 0.05


def test_from_a_file(tmp_path: Path) -> None:
    task = make_task(write(tmp_path, IMPORTS + OWN) + ":slope=-2,points=4")
    assert type(task).__name__ == "Mine"
    assert (task.rate, task.steps, task.tau) == (0.7, 17, 1.0)
    check_pure(task)
    batch = Problem(task).batch(derive(0))
    assert torch.equal(batch["y"], -2 * batch["x"] + 1)
    assert batch["x"].shape == (4, 1)


def test_options_that_every_task_has(tmp_path: Path) -> None:
    file = write(tmp_path, IMPORTS + OWN + "\nmade = Mine(slope=5.0)\n")
    for spec in ("digits:clip_norm=0.5,hidden=3", f"{file}:Mine:clip_norm=0.5", f"{file}:made:clip_norm=0.5"):
        task = make_task(spec)
        assert task.clip_norm == 0.5
        assert Problem(task).gradient(Problem(task).initial(0), Problem(task).batch(derive(0)))[1].norm() < 0.51
    assert make_task("digits:autocast=bfloat16").autocast == "bfloat16"
    assert make_task("digits:autocast=none,clip_norm=none") == Digits()
    assert (make_task("digits").clip_norm, make_task(f"{file}:made").clip_norm) == (None, None), (
        "others stay as they are"
    )


def test_an_option_of_that_name_is_the_tasks_own(tmp_path: Path) -> None:
    own = OWN.replace("slope: float = 3.0", "slope: float = 3.0\n    clip_norm: int = 7")
    assert make_task(write(tmp_path, IMPORTS + own) + ":clip_norm=4").clip_norm == 4
    with pytest.raises(SpecError, match=r"option 'clip_norm' takes a whole number, got '0\.5'"):
        make_task(write(tmp_path, IMPORTS + own) + ":clip_norm=0.5")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^no task file at '.*nowhere\.py'$"):
        make_task(str(tmp_path / "nowhere.py"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(SpecError, match="no task file at"):
        make_task(str(tmp_path / "folder.py"))


def test_two_tasks_in_a_file(tmp_path: Path) -> None:
    source = IMPORTS + OWN + OWN.replace("Mine", "Other")
    with pytest.raises(SpecError, match=r"defines 2 tasks, Mine and Other: say which, as in my_task\.py:Mine"):
        make_task(write(tmp_path, source))


@pytest.mark.parametrize("source", ["", IMPORTS, IMPORTS + OWN.replace("def loss", "def lost")])
def test_no_complete_task_in_a_file(tmp_path: Path, source: str) -> None:
    with pytest.raises(SpecError, match="defines 0 tasks"):
        make_task(write(tmp_path, source))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digit", "unknown task 'digit': did you mean digits or digits-cnn\\?"),
        ("xyz", "unknown task 'xyz': choose from digits, digits-cnn, quadratic"),
        ("digits:width=3", "'digits:width=3' has no option 'width' \\(its options: batch_size, hidden, activation\\)"),
        ("digits:hidden=many", "option 'hidden' takes a whole number, got 'many'"),
        ("digits:clip_norm=much", "option 'clip_norm' takes a finite number or none, got 'much'"),
        ("digits:hidden", "'hidden' in 'digits:hidden' is not an option"),
        ("digits:batch_size=0", "'digits:batch_size=0': batch_size must be at least 1 and at most 65536, got 0"),
        ("quadratic:noise=-1", "'quadratic:noise=-1': needs dimension ≥ 1, condition ≥ 1 and noise ≥ 0"),
    ],
)
def test_errors(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        make_task(spec)


class _Gathered(Digits):
    """Gathers its batches on the device."""

    def batch_on(self, device: torch.device, draw: Stream) -> Batch:
        return {"gathered": torch.ones(1)}


class _OwnBatch(_Gathered):
    """A user's own batch, under a task that has another way to draw one."""

    def batch(self, draw: Stream) -> Batch:
        return {"own": torch.ones(1)}


class _Both(_OwnBatch):
    def batch_on(self, device: torch.device, draw: Stream) -> Batch:
        return {"both": torch.ones(1)}


@pytest.mark.parametrize(
    ("task", "names"), [(_Gathered(), {"gathered"}), (_OwnBatch(), {"own"}), (_Both(), {"both"})], ids=str
)
def test_whoever_defines_the_batch_last_is_asked(task: Task, names: set[str]) -> None:
    """Also where the class above it has a way of its own."""
    assert draw_batch(task, torch.device("cpu"), stream(0)).keys() == names
