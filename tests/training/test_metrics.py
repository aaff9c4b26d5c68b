"""Metrics beside a task's own: by name, from a file, and what they may not be."""

from pathlib import Path

import pytest
import torch
from torch import nn

from troth.specs import SpecError
from troth.training import Problem, TaskError, make_task
from troth.training.metrics import METRICS, BackdoorSuccess, make_metric
from troth.workshop.simulation import Scenario, simulate

QUICK = Scenario(task="digits:hidden=4", peers=3, steps=2, evaluate_every=1, defence="mean")


class Constant(nn.Module):
    """Takes every image for one class, unless its lower right corner is bright."""

    def __init__(self, usual: int, triggered: int) -> None:
        super().__init__()
        self.usual, self.triggered = usual, triggered

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        bright = images[:, 0, -1, -1] >= 1
        return nn.functional.one_hot(torch.where(bright, self.triggered, self.usual), 10).float()


def test_backdoor_counts_triggered_images_of_other_classes() -> None:
    task = make_task("digits")
    assert make_metric("backdoor:target=4")(task, Constant(usual=1, triggered=4)) == 1.0
    assert make_metric("backdoor:target=4")(task, Constant(usual=4, triggered=1)) == 0.0
    assert make_metric("backdoor") == BackdoorSuccess(0)


def test_examples_are_the_images_of_the_evaluation() -> None:
    task = make_task("digits")
    examples = task.examples()
    assert examples is not None
    assert (examples["images"].shape, examples["labels"].shape) == ((360, 1, 8, 8), (360,))
    assert make_task("quadratic").examples() is None
    problem = Problem(task)
    flat_D = problem.initial(0)
    right = problem.module(flat_D)(examples["images"]).argmax(dim=1) == examples["labels"]
    assert problem.evaluate(flat_D)["accuracy"] == pytest.approx(float(right.double().mean()))


def test_a_scenarios_metrics_stand_in_every_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def ones(task, model, times: int = 1):\n    return times\n")
    summary = simulate(Scenario(**{**vars(QUICK), "metrics": ["backdoor", f"{file}:ones:times=3"]})).summary
    assert [point[f"{file}:ones:times=3"] for point in summary.curve] == [3.0, 3.0, 3.0]
    assert all(0 <= point["backdoor"] <= 1 for point in summary.curve)
    assert set(summary.metrics) == {"accuracy", "loss", "backdoor", f"{file}:ones:times=3"}
    assert summary.config["metrics"] == ("backdoor", f"{file}:ones:times=3")
    assert str(file) in summary.config["files"], "the result follows from the file, so its digest is written down"


def test_a_scenario_without_metrics_is_written_as_before() -> None:
    assert "metrics" not in QUICK.as_dict()
    assert Scenario(metrics="backdoor + backdoor:target=2").metrics == ("backdoor", "backdoor:target=2")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("backdor", "unknown metric 'backdor': did you mean backdoor\\?"),
        ("backdoor:taget=1", "'backdoor:taget=1' has no option 'taget'"),
        ("backdoor:target=x", "option 'target' takes a whole number, got 'x'"),
    ],
)
def test_unknown_metrics(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        Scenario(metrics=[spec])


def test_a_metric_that_does_not_fit_the_task() -> None:
    with pytest.raises(TaskError, match=r"^metric backdoor needs a task whose examples\(\) are images with labels"):
        Scenario(task="quadratic", metrics=["backdoor"])
    with pytest.raises(TaskError, match=r"^backdoor's target must be one of the 10 classes, got 10"):
        Scenario(metrics=["backdoor:target=10"])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def m(task, model):\n    return 'much'\n", "must give one number, and gave str"),
        ("def m(task, model):\n    return 1 / 0\n", r"fails at .*mine\.py:2: ZeroDivisionError"),
    ],
)
def test_mistakes_in_a_users_metric(tmp_path: Path, code: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(TaskError, match=message):
        simulate(Scenario(**{**vars(QUICK), "metrics": [str(file)]}))


def test_a_metric_that_has_the_name_of_a_tasks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS._places, "accuracy", "troth.training.metrics:BackdoorSuccess")
    with pytest.raises(TaskError, match=r"^'accuracy' is a metric of the task already"):
        simulate(Scenario(**{**vars(QUICK), "metrics": ["accuracy"]}))
