"""`troth attacks`, `troth defences`, `troth tasks`."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli.conftest import Troth
from troth.training import TASKS
from troth.workshop.attacks import ATTACKS
from troth.workshop.rules.table import RULES
from troth.workshop.simulation.stranger_specs import STRANGERS

TASK = """
from dataclasses import dataclass
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn
from troth.training import Task

@dataclass(frozen=True)
class Lines(Task):
    def model(self):
        return nn.Linear(1, 1)

    def batch(self, draw):
        x = torch.from_numpy(draw.uniform(8)).float()[:, None]
        return {"x": x, "y": 3 * x}

    def loss(self, model, batch):
        return F.mse_loss(model(batch["x"]), batch["y"])
"""


@pytest.mark.parametrize(
    ("command", "names"), [("attacks", [*ATTACKS, *STRANGERS]), ("defences", RULES), ("tasks", TASKS)]
)
def test_every_name_has_its_line(troth: Troth, command: str, names: Iterable[str]) -> None:
    done = troth(command)
    assert (done.code, done.err) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.out.splitlines() if line]
    assert set(names) <= {name for name, _ in rows}
    assert all(len(about) > 10 for _, about in rows)


def test_options_are_shown_with_their_defaults(troth: Troth) -> None:
    assert "[scale=1000.0]" in troth("attacks").out
    assert "[batch_size=8, hidden=64, activation=relu]" in troth("tasks").out


def test_check_a_built_in_task(troth: Troth) -> None:
    done = troth("tasks", "--check", "digits:hidden=2")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "digits:hidden=2 is pure: the same seed gives the same gradient"
    assert lines[1] == "parameters   160 trained, 0 frozen"
    assert re.fullmatch(r"gradients    of many peers in one call, [\d.,]+ ms for one here", lines[2])
    assert lines[3] == "randomness   none in the loss"
    assert re.fullmatch(r"distance     [\d.]+ from one gradient to the mean of eight, at first; tau is 1", lines[4])
    assert lines[5] == "files        0 declared in data_files(), 0 seen being read"


def test_check_shows_dropout_frozen_layers_and_options(troth: Troth) -> None:
    model = "nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.Linear(1, 1).requires_grad_(False))"
    options = "class Lines(Task):\n    accumulate = 2\n    autocast = 'bfloat16'\n    clip_norm = 0.5\n"
    options += "    def shard(self, peer, peers, honest): return self\n"
    Path("mine.py").write_text(TASK.replace("nn.Linear(1, 1)", model).replace("class Lines(Task):\n", options))
    done = troth("tasks", "--check", "mine.py")
    assert (done.code, done.err) == (0, "")
    assert "parameters   2 trained, 2 frozen\n" in done.out
    assert "             2 micro-batches each, in bfloat16\n" in done.out
    assert "             gradients are clipped to a length of 0.5\n" in done.out
    assert "randomness   dropout ×1, all from the seed of the batch\n" in done.out
    assert "advice       shard() is for rules with a trusted server; under troth" in done.out


def test_check_advises(troth: Troth) -> None:
    Path("mine.py").write_text(
        "import torch, troth\n"
        "odd = troth.task(model=lambda: torch.nn.Linear(1, 1).double(), data=[(k / 5, k / 3) for k in range(5)], batch_size=6,\n"
        "    loss=lambda model, batch: (model(batch[0].float()[:, None]) - batch[1][:, None]).square().mean(), tau=1e9)\n"
    )
    done = troth("tasks", "--check", "mine.py")
    assert (done.code, done.err) == (0, "")
    tau, batch, kind = (line for line in done.out.splitlines() if line.startswith("advice"))
    assert "tau is larger than the usual distance: begin with a quarter to a half of that" in tau
    assert "a batch of 6 is drawn from 5 items" in batch
    assert "model() makes parameters of float64, and they are trained in float32" in kind


def test_check_says_why_gradients_are_computed_one_by_one(troth: Troth) -> None:
    Path("mine.py").write_text(TASK.replace("return F.mse", "assert batch['x'].sum().item() > 0; return F.mse"))
    done = troth("tasks", "--check", "mine.py")
    assert done.code == 0
    assert "\ngradients    one by one (vmap: the loss calls .item(), or has control flow that depends on" in done.out


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("3 * x}", "3 * x + torch.rand(8, 1)}", "batch() uses the global generator of torch"),
        ("draw.uniform(8)", "draw.uniform(8) * 0", "batch() ignores its seed"),
        ("nn.Linear(1, 1)", "nn.LSTM(1, 1, 2, dropout=0.5)", "the model (LSTM) uses dropout between the layers"),
        ("F.mse_loss(", "F.mes_loss(", "loss() fails at "),
        ("draw.uniform(8)", "draw.uniform(8 + len(Path('own.csv').read_text()))", "batch() reads "),
        ("nn.Linear(1, 1)", "nn.Identity()", "the model has no parameters to train"),
    ],
)
def test_check_an_impure_file(troth: Troth, right: str, wrong: str, message: str) -> None:
    Path("mine.py").write_text(TASK.replace(right, wrong))
    Path("own.csv").touch()
    done = troth("tasks", "--check", "mine.py")
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(f"troth: {message}")
    assert done.err.count("\n") == 1


def test_check_an_unknown_task(troth: Troth) -> None:
    assert troth("tasks", "--check", "digit").err.startswith("troth: unknown task 'digit': did you mean digits")
