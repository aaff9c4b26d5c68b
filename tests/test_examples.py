"""`examples/`: every one of them does what its first lines say, and is short enough to read."""

import ast
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import troth

EXAMPLES = Path(__file__).parents[1] / "examples"
MOST_LINES = 44


def play(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run an example as a person would, but in this process, and return the lines that it prints."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_examples_are_short_and_say_how_to_run_them() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert len(files) >= 4
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert text.count("\n") <= MOST_LINES, file.name
        assert f"python {file.name}" in (ast.get_docstring(ast.parse(text)) or ""), file.name


@pytest.mark.long
def test_own_task(capsys: pytest.CaptureFixture[str]) -> None:
    *banned, figures, _ = play("own_task.py", capsys)
    before, after = (float(figures.split()[k]) for k in (1, 3))
    assert after < before
    assert len(banned) == 2


@pytest.mark.long
def test_own_attack(capsys: pytest.CaptureFixture[str]) -> None:
    mean, median, protocol = play("own_attack.py", capsys)
    accuracy = {line.split()[0]: float(line.split()[1].rstrip("%,")) for line in (mean, median, protocol)}
    assert accuracy["mean"] < 30 < accuracy["troth"]
    assert protocol.count("peer") == 3, protocol


@pytest.mark.long
def test_own_shards(capsys: pytest.CaptureFixture[str]) -> None:
    even_mean, even_median, own_mean, own_median = (float(line.split()[-1]) for line in play("own_shards.py", capsys))
    assert even_median < 1.2 * even_mean
    assert own_median > 1.5 * own_mean


@pytest.mark.long
def test_lightning_module(capsys: pytest.CaptureFixture[str]) -> None:
    """It needs an extra, which is not among the tests' packages."""
    if find_spec("lightning") is None:
        with pytest.raises(ModuleNotFoundError, match="lightning"):
            play("lightning_module.py", capsys)
        return
    figures, own = play("lightning_module.py", capsys)
    before, after = (float(figures.split()[k]) for k in (1, 3))
    assert after < before
    assert float(own.split()[1]) == after
    assert figures.endswith("banned: 1")


@pytest.mark.long
def test_huggingface_model(capsys: pytest.CaptureFixture[str]) -> None:
    """It needs an extra; with it, the loss in a fresh model of one's own is that of the run."""
    if find_spec("transformers") is None:
        with pytest.raises(ModuleNotFoundError, match="transformers"):
            play("huggingface_model.py", capsys)
        return
    banned, figures, own = play("huggingface_model.py", capsys)
    assert "is banned: its gradient" in banned
    before, after = (float(figures.split()[k]) for k in (1, 3))
    assert after < before
    assert float(own.split()[1]) == after


@pytest.mark.long
def test_four_friends_and_the_program_that_each_of_them_runs(tmp_path: Path) -> None:
    """A real run of four processes, each of which is `embedding.py`: all end with the same model."""
    command = [sys.executable, str(EXAMPLES / "four_friends.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "4 friends trained, and hold 1 model between them."
    assert done.stderr.count("my-program: step 20 of 20") == 8  # the last step, and the one that closes the run
    models = [load_file(tmp_path / f"{name}.safetensors") for name in ("alice", "bob", "carol", "dave")]
    assert all(torch.equal(model[name], models[0][name]) for model in models for name in models[0])
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 4
    assert troth.verify(folders[0] / "model.json", run=tmp_path / "run.toml")
