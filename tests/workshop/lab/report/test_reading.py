"""A sweep's folder is read strictly: what is malformed is named with its file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workshop.lab.made_results import made_run, made_sweep, write_results
from troth.errors import OperatorError
from troth.workshop.lab.reading import read_results, sweep_folders

AXES = {"attack": ["none", "alie"], "defence": ["troth", "mean"]}


def sweep(tmp_path: Path, *runs: dict[str, Any], toml: str = 'name = "made"\n', times: bool = True) -> Path:
    return write_results(tmp_path / "made", runs or made_sweep(AXES, [0]), toml, times=times)


def test_a_whole_folder(tmp_path: Path) -> None:
    head = 'name = "m"\ntitle = "T"\ncompare = "attack × defence"\npaired = ["troth", "mean"]\n'
    expected = '[[expected]]\nattack = "alie"\naccuracy = 98.0\nsource = "a paper"\nlast = 5\n'
    read = read_results(sweep(tmp_path, toml=head + expected))
    assert (read.name, read.title, read.compare, read.file.paired) == (
        "m",
        "T",
        ("attack", "defence"),
        ("troth", "mean"),
    )
    assert len(read.runs) == 4
    assert not read.torn
    assert [run.calm for run in read.runs] == [True, True, False, False]
    assert read.runs[0].seconds == 2.5
    [figure] = read.expected
    assert (figure.labels, figure.value, figure.last) == ({"attack": "alie"}, 0.98, 5), "per cent became a share"


def test_runs_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Whatever the order in which they ended, and with labels and groups; what the file does not list comes last."""
    cells = [
        ("b", "flip", "troth"),
        ("a", "new", "troth"),
        ("a", "flip", "mean"),
        ("a", "none", "mean"),
        ("a", "none", "troth"),
    ]
    runs = [
        made_run({"group": group, "attack": attack, "defence": defence, "seed": 0}) for group, attack, defence in cells
    ]
    axes = 'axes.attack = ["none", "flip"]\naxes.defence = [{ label = "troth", tau = 1 }, "mean"]\n'
    toml = f'name = "made"\n[[groups]]\nname = "a"\n{axes}[[groups]]\nname = "b"\n{axes}'
    found = read_results(sweep(tmp_path, *runs, toml=toml)).runs
    assert [tuple(run.labels[axis] for axis in ("group", "attack", "defence")) for run in found] == [
        ("a", "none", "troth"),
        ("a", "none", "mean"),
        ("a", "flip", "mean"),
        ("a", "new", "troth"),
        ("b", "flip", "troth"),
    ]


def test_a_failed_run_is_kept_apart(tmp_path: Path) -> None:
    labels = {"attack": "none", "defence": "mean", "seed": 0}
    failed = {"key": "f", "labels": labels, "config": {}, "error": "out of memory"}
    read = read_results(sweep(tmp_path, made_run({**labels, "seed": 1}), failed))
    assert len(read.runs) == 1
    assert read.failed[0].error == "out of memory"


def test_a_last_line_that_is_cut_off_is_an_unfinished_sweep(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    results = folder / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-100])
    read = read_results(folder)
    assert read.torn
    assert len(read.runs) == 3


def test_a_last_line_that_lacks_its_newline_alone_is_cut_off_too(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    results = folder / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-1])
    read = read_results(folder)
    assert read.torn
    assert len(read.runs) == 3


def test_a_line_in_the_middle_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    results = folder / "results.jsonl"
    lines = results.read_text().splitlines()
    results.write_text("\n".join([lines[0], lines[1][:-30], *lines[2:]]) + "\n")
    with pytest.raises(OperatorError, match=r"results\.jsonl, line 2: "):
        read_results(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": 7}, "got `int` - at `$.key`"),
        ({"labels": []}, "got `array` - at `$.labels`"),
        ({"labels": {"attack": "none", "defence": "mean"}}, "`labels` has no `seed`"),
        ({"labels": {"attack": "none", "seed": 0}}, "the axes"),
        ({"labels": {"attack": [], "defence": "mean", "seed": 0}}, "got `array` - at `$.labels[...]`"),
        ({"labels": {"attack": "none", "defence": "mean", "seed": True}}, "`labels` has no `seed`"),
        ({"metrics": {}}, "`metrics` is empty"),
        ({"metrics": {"accuracy": "high"}}, "got `str` - at `$.metrics[...]`"),
        ({"metrics": {"accuracy": 10**400}}, "Number out of range"),
        ({"curve": [{"accuracy": 0.1}]}, "has no `step`"),
        ({"curve": [{"step": 10}, {"step": 10}]}, "do not rise"),
        ({"outcome": {}}, "missing required field `steps`"),
        ({"version": None}, "got `null` - at `$.version`"),
    ],
)
def test_malformed_lines_are_refused_with_their_number(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good, bad = made_sweep({"attack": ["none"], "defence": ["mean"]}, [0, 1])
    with pytest.raises(OperatorError, match=r"results\.jsonl, line 2: ") as refused:
        read_results(sweep(tmp_path, good, {**bad, **change}, times=False))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "[" * 100_000])
def test_numbers_and_objects_that_json_does_not_have(tmp_path: Path, text: str) -> None:
    folder = sweep(tmp_path, *made_sweep({"attack": ["none"]}, [0, 1]))
    results = folder / "results.jsonl"
    first, second = results.read_text().splitlines()
    at = json.dumps(json.loads(first)["metrics"]["loss"])
    results.write_text(first.replace(f'"loss": {at}}}, "curve"', f'"loss": {text}}}, "curve"') + "\n" + second + "\n")
    with pytest.raises(OperatorError, match="line 1: "):
        read_results(folder)


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    run = made_run({"attack": "none", "seed": 0})
    with pytest.raises(OperatorError, match="line 2: a second run with the key"):
        read_results(sweep(tmp_path, run, run))


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("name = 3", "got `int` - at `.\\.name`"),
        ("title = 'x'", "missing required field `name`"),
        ("name = ", "not TOML"),
        ("name = 'x'\ncompare = 'attack'", "`compare` must be two axes"),
        ("name = 'x'\npaired = ['troth']", "Expected `array` of length >= 2"),
        ("name = 'x'\n[[expected]]\nattack = 'alie'", "must have an accuracy or a loss"),
        ("name = 'x'\n[[expected]]\ncolour = 'red'\naccuracy = 1", "names \\['colour'\\], which is no axis"),
    ],
)
def test_a_malformed_sweep_file_is_refused(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(OperatorError, match=rf"sweep\.toml.*{message}"):
        read_results(sweep(tmp_path, toml=toml))


def test_a_folder_of_sweeps_and_one_without(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OperatorError, match=r"holds no results\.jsonl"):
        sweep_folders(tmp_path)
    with pytest.raises(OperatorError, match="is no folder"):
        sweep_folders(tmp_path / "nowhere")
    folder = sweep(tmp_path)
    assert sweep_folders(tmp_path) == [folder]
    assert sweep_folders(folder) == [folder]


def test_a_folder_without_the_sweep_file_is_refused(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    (folder / "sweep.toml").unlink()
    with pytest.raises(OperatorError, match=r"cannot read .*sweep\.toml"):
        read_results(folder)


def test_a_metric_that_is_too_large_to_average_is_none(tmp_path: Path) -> None:
    run = made_run({"attack": "none", "seed": 0}, metrics={"accuracy": 0.1, "loss": 1e300})
    assert read_results(sweep(tmp_path, run)).runs[0].metrics == {"accuracy": 0.1, "loss": None}


def test_times_are_read_strictly_too_but_may_be_cut_off(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    times = folder / "times.jsonl"
    times.write_bytes(times.read_bytes()[:-5])
    assert [run.seconds is None for run in read_results(folder).runs] == [False, False, False, True]
    times.write_text('{"key": "x", "seconds": "long"}\n')
    with pytest.raises(OperatorError, match=r"times\.jsonl, line 1: Expected `float`, got `str`"):
        read_results(folder)
