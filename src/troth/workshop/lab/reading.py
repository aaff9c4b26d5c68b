"""Reading a sweep's folder: strictly, since a report of a damaged file would look like any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from troth.errors import printable
from troth.workshop.lab.files import RESULTS, SWEEP, TIMES, SweepError, SweepFile, convert, read_lines, read_toml
from troth.workshop.lab.tables import ExpectedResult, FailedRun, FinishedRun, FinishedSweep, Labels


class _Time(Struct):
    key: str
    seconds: float
    machine: str = ""


def sweep_folders(folder: Path) -> list[Path]:
    """The folder itself if it holds a sweep's results, otherwise those in it that do."""
    if (folder / RESULTS).is_file():
        return [folder]
    if not folder.is_dir():
        raise SweepError(f"{folder} is no folder: name the one in which 'troth lab run' left {RESULTS}")
    found = sorted(place for place in folder.iterdir() if (place / RESULTS).is_file())
    if not found:
        raise SweepError(f"{folder} holds no {RESULTS}, nor does a folder in it: run 'troth lab run' first")
    return found


def read_sweep(folder: Path) -> FinishedSweep:
    """Read `results.jsonl`, `sweep.toml`, and `times.jsonl` where it is there."""
    file, _ = read_toml(folder / SWEEP)
    times, _ = read_lines(folder / TIMES, lambda line: convert(line, _Time))
    seconds = {time.key: time.seconds for time in times}
    seen: set[tuple[Any, ...]] = set()
    axes = None

    def read(line: dict[str, Any]) -> FinishedRun | FailedRun:
        nonlocal axes
        run = (
            convert(line, FailedRun)
            if "error" in line
            else convert(line | {"seconds": seconds.get(line.get("key", ""))}, FinishedRun)
        )
        axes = axes or run.labels.keys()
        if run.labels.keys() != axes:
            raise ValueError(f"`labels` has the axes {sorted(run.labels)}, the first run {sorted(axes)}")
        if (cell := (run.key, *sorted(run.labels.items()))) in seen:  # cells may share a run, but not a place
            raise ValueError(f"a second run with the key {run.key} and the same labels")
        seen.add(cell)
        return run

    lines, torn = read_lines(folder / RESULTS, read)
    try:
        expected = tuple(map(_expected, file.expected))
        if axes and (unknown := {axis for entry in expected for axis in entry.labels} - axes):
            raise ValueError(f"[[expected]] names {sorted(unknown)}, which is no axis of the results")
        compare = _compare(file.compare)
    except ValueError as error:
        raise SweepError(printable(f"{folder / SWEEP}: {error}")) from error
    return FinishedSweep(
        file=file,
        compare=compare,
        expected=expected,
        runs=tuple(sorted((line for line in lines if isinstance(line, FinishedRun)), key=_place_in(file))),
        failed=tuple(line for line in lines if isinstance(line, FailedRun)),
        torn=torn,
        machines=tuple(dict.fromkeys(time.machine for time in times if time.machine)),
    )


def _place_in(file: SweepFile) -> Callable[[FinishedRun], list[int]]:
    """Where the file lists a run's labels: runs end in any order, and are shown in that of the file."""
    listed: dict[str, list[Any]] = {"group": [group.name for group in file.groups]}
    for axes in file.tables_of_axes:
        for axis, values in axes.items():
            labels = [value.get("label") if isinstance(value, dict) else value for value in values]
            listed.setdefault(axis, []).extend(labels)

    def place(run: FinishedRun) -> list[int]:
        found = ((listed.get(axis, []), label) for axis, label in run.labels.items() if axis != "seed")
        return [labels.index(label) if label in labels else len(labels) for labels, label in found]

    return place


def _compare(text: str) -> tuple[str, str] | None:
    axes = [axis.strip() for axis in text.replace(" x ", "×").split("×")]
    if text and (len(axes) != 2 or not all(axes)):
        raise ValueError(f"`compare` must be two axes, as in 'attack × defence', got {text!r}")
    return (axes[0], axes[1]) if text else None


def _expected(entry: dict[str, Any]) -> ExpectedResult:
    """`{attack = "alie", accuracy = 98.0, source = "…", last = 5}`: one metric, and labels (or these in a table `labels`)."""
    rest = dict(entry)
    source, last = convert(rest.pop("source", ""), str), convert(rest.pop("last", 1), int)
    if last < 1:
        raise ValueError(f"`last` of [[expected]] must be at least 1, got {last}")
    metrics = [name for name in ("accuracy", "loss") if name in rest]
    if len(metrics) != 1:
        raise ValueError(f"[[expected]] must have an accuracy or a loss, got {sorted(rest)}")
    metric = metrics[0]
    value = convert(rest.pop(metric), float)
    # Papers print per cent, our files hold shares: an accuracy above 1 can only be the former.
    value = value / 100 if metric == "accuracy" and value > 1 else value
    return ExpectedResult(convert(rest.get("labels", rest), Labels), metric, value, source, last)
