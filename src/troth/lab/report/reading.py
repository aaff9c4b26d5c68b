"""Reading a sweep's folder: strictly, since a report of a damaged file would look like any other."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from troth.bounded_toml import MOST_BYTES, parse_toml
from troth.errors import OperatorError, printable
from troth.lab.report.records import Expected, FailedRun, Labels, Run, Sweep, SweepFile

T = TypeVar("T")

RESULTS, TIMES, FILE = "results.jsonl", "times.jsonl", "sweep.toml"


class ReportError(OperatorError):
    """A folder that no report can be made of; the message names the file, the line and what is wrong."""


class _Time(Struct):
    key: str
    seconds: float
    machine: str = ""


def sweep_folders(folder: Path) -> list[Path]:
    """The folder itself if it holds a sweep's results, otherwise those in it that do."""
    if (folder / RESULTS).is_file():
        return [folder]
    if not folder.is_dir():
        raise ReportError(f"{folder} is no folder: name the one in which 'troth lab run' left {RESULTS}")
    found = sorted(place for place in folder.iterdir() if (place / RESULTS).is_file())
    if not found:
        raise ReportError(f"{folder} holds no {RESULTS}, nor does a folder in it: run 'troth lab run' first")
    return found


def read_sweep(folder: Path) -> Sweep:
    """Read `results.jsonl`, `sweep.toml`, and `times.jsonl` where it is there."""
    file = _read_file(folder / FILE)
    times, _ = _read_lines(folder / TIMES, lambda line: _as(line, _Time)) if (folder / TIMES).exists() else ([], False)
    seconds = {time.key: time.seconds for time in times}
    seen: set[tuple[Any, ...]] = set()
    axes = None

    def read(line: dict[str, Any]) -> Run | FailedRun:
        nonlocal axes
        run = (
            _as(line, FailedRun) if "error" in line else _as(line | {"seconds": seconds.get(line.get("key", ""))}, Run)
        )
        axes = axes or run.labels.keys()
        if run.labels.keys() != axes:
            raise ValueError(f"`labels` has the axes {sorted(run.labels)}, the first run {sorted(axes)}")
        if (cell := (run.key, *sorted(run.labels.items()))) in seen:  # cells may share a run, but not a place
            raise ValueError(f"a second run with the key {run.key} and the same labels")
        seen.add(cell)
        return run

    lines, torn = _read_lines(folder / RESULTS, read)
    try:
        expected = tuple(map(_expected, file.expected))
        if axes and (unknown := {axis for entry in expected for axis in entry.labels} - axes):
            raise ValueError(f"[[expected]] names {sorted(unknown)}, which is no axis of the results")
        compare = _compare(file.compare)
    except ValueError as error:
        raise ReportError(printable(f"{folder / FILE}: {error}")) from error
    cells = sum(math.prod(map(len, table.axes.values())) for table in file.tables)
    return Sweep(
        file=file,
        compare=compare,
        expected=expected,
        runs=tuple(sorted((line for line in lines if isinstance(line, Run)), key=_place_in(file))),
        failed=tuple(line for line in lines if isinstance(line, FailedRun)),
        torn=torn,
        planned=len(file.seeds) * cells if any(table.axes for table in file.tables) else None,
        machines=tuple(dict.fromkeys(time.machine for time in times if time.machine)),
    )


def _as(value: Any, kind: type[T]) -> T:
    return msgspec.convert(value, kind, str_keys=True)


def _read_lines(path: Path, read: Callable[[dict[str, Any]], T]) -> tuple[list[T], bool]:
    """What each line says, and whether the last is cut off: being written, or the machine was gone."""
    found: list[T] = []
    for number, line, last in _lines(path):
        where = f"{path}, line {number}"
        try:
            value = json.loads(line.decode(), parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            if last:
                return found, True
            raise ReportError(printable(f"{where}: no JSON ({str(error) or 'nested too deeply'})")) from error
        if not isinstance(value, dict):
            raise ReportError(f"{where}: no object")
        try:
            found.append(read(value))
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise ReportError(printable(f"{where}: {error}")) from error
    return found, False


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Numbers and contents, and whether a line has no newline behind it."""
    try:
        *whole, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    yield from ((number, line, False) for number, line in enumerate(whole, 1))
    if rest:
        yield len(whole) + 1, rest, True


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return value


def _read_file(path: Path) -> SweepFile:
    try:
        with path.open("rb") as content:
            return _as(parse_toml(content.read(MOST_BYTES + 1), "sweep"), SweepFile)
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(printable(f"{path}: {error}")) from error


def _place_in(file: SweepFile) -> Callable[[Run], list[int]]:
    """Where the file lists a run's labels: runs end in any order, and are shown in that of the file."""
    listed: dict[str, list[Any]] = {"group": [group.name for group in file.groups]}
    for table in file.tables:
        for axis, values in table.axes.items():
            labels = [value.get("label") if isinstance(value, dict) else value for value in values]
            listed.setdefault(axis, []).extend(labels)

    def place(run: Run) -> list[int]:
        axes = ((listed.get(axis, []), label) for axis, label in run.labels.items() if axis != "seed")
        return [labels.index(label) if label in labels else len(labels) for labels, label in axes]

    return place


def _compare(text: str) -> tuple[str, str] | None:
    axes = [axis.strip() for axis in text.replace(" x ", "×").split("×")]
    if text and (len(axes) != 2 or not all(axes)):
        raise ValueError(f"`compare` must be two axes, as in 'attack × defence', got {text!r}")
    return (axes[0], axes[1]) if text else None


def _expected(entry: dict[str, Any]) -> Expected:
    """`{attack = "alie", accuracy = 98.0, source = "…", last = 5}`: one metric, and labels (or these in a table `labels`)."""
    rest = dict(entry)
    source, last = _as(rest.pop("source", ""), str), _as(rest.pop("last", 1), int)
    if last < 1:
        raise ValueError(f"`last` of [[expected]] must be at least 1, got {last}")
    metrics = [name for name in ("accuracy", "loss") if name in rest]
    if len(metrics) != 1:
        raise ValueError(f"[[expected]] must have an accuracy or a loss, got {sorted(rest)}")
    metric = metrics[0]
    value = _as(rest.pop(metric), float)
    # Papers print per cent, our files hold shares: an accuracy above 1 can only be the former.
    value = value / 100 if metric == "accuracy" and value > 1 else value
    return Expected(_as(rest.get("labels", rest), Labels), metric, value, source, last)
