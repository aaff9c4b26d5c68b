"""Reading a sweep's folder: strictly, since a report of a damaged file would look like any other."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from troth.bounded_toml import MOST_BYTES, parse_toml
from troth.errors import OperatorError, printable
from troth.lab.report.records import Expected, FailedRun, Labels, Outcome, Run, Sweep

_LARGEST = 1e100
RESULTS, TIMES, FILE = "results.jsonl", "times.jsonl", "sweep.toml"


class ReportError(OperatorError):
    """A folder that no report can be made of; the message names the file, the line and what is wrong."""


class _Place:
    """A file and a line, for messages."""

    def __init__(self, file: Path, line: int | None = None) -> None:
        self._where = f"{file}" if line is None else f"{file}, line {line}"

    def refuse(self, why: str) -> NoReturn:
        raise ReportError(printable(f"{self._where}: {why}"))

    def get(self, table: dict[str, Any], name: str, *kinds: type, default: Any = ...) -> Any:
        """An entry of one of these kinds. A number that is not finite, or has more than 64 bits, is of none of them."""
        if name not in table:
            return self.refuse(f"`{name}` is missing") if default is ... else default
        return self.check(table[name], f"`{name}`", *kinds)

    def check(self, value: Any, what: str, *kinds: type) -> Any:
        right = any(type(value) is kind for kind in kinds)  # exact: a bool is no int here
        if isinstance(value, float) and not math.isfinite(value):
            right = False
        if isinstance(value, int) and abs(value) >= 2**63:
            right = False
        if not right:
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            self.refuse(f"{what} must be {wanted}, got {_short(value)}")
        return value


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
    sweep = _read_file(folder / FILE)
    seconds, machines = _read_times(folder / TIMES)
    runs: list[Run] = []
    failed: list[FailedRun] = []
    seen: set[tuple[Any, ...]] = set()
    torn, axes = False, None
    for place, line in _lines(folder / RESULTS):
        if line is None:
            torn = True
            break
        key = place.get(line, "key", str)
        labels = _labels(place, place.get(line, "labels", dict))
        if (cell := (key, *sorted(labels.items()))) in seen:  # cells of the table may share a run, but not a place
            place.refuse(f"a second run with the key {_short(key)} and the same labels")
        seen.add(cell)
        axes = axes or labels.keys()
        if labels.keys() != axes:
            place.refuse(f"`labels` has the axes {_short(sorted(labels))}, the first run {_short(sorted(axes))}")
        config = place.get(line, "config", dict)
        if "error" in line:
            failed.append(FailedRun(labels, place.get(line, "error", str)))
        else:
            runs.append(replace(_run(place, line, key, labels, config), seconds=seconds.get(key)))
    for entry in sweep.expected:
        if axes and (unknown := sorted(entry.labels.keys() - axes)):
            _Place(folder / FILE).refuse(f"[[expected]] names {_short(unknown)}, which is no axis of the results")
    runs.sort(key=_place_in(sweep.file))
    return replace(sweep, runs=tuple(runs), failed=tuple(failed), torn=torn, machines=machines)


# Lines


def _lines(path: Path) -> Iterator[tuple[_Place, dict[str, Any] | None]]:
    """Every line's object, and None for a last one that is cut off."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        last = number == len(lines)  # without a newline: being written, or cut off
        if last and not line:
            return
        place = _Place(path, number)
        try:
            value = json.loads(line.decode(), parse_constant=_no_constant, object_pairs_hook=_no_doubles)
        except (ValueError, RecursionError) as error:
            if last:
                yield place, None
                return
            place.refuse(f"no JSON ({str(error) or 'nested too deeply'})")
        yield place, place.check(value, "a line", dict)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("an object names an entry twice")
    return table


def _read_times(path: Path) -> tuple[dict[str, float], tuple[str, ...]]:
    """Seconds by key, and the machines, in the order in which they come up."""
    times: dict[str, float] = {}
    machines: dict[str, None] = {}
    for place, line in _lines(path) if path.exists() else ():
        if line is not None:  # the last run's time may be cut off; it has none then
            times[place.get(line, "key", str)] = float(place.get(line, "seconds", int, float))
            if machine := place.get(line, "machine", str, default=""):
                machines[machine] = None
    return times, tuple(machines)


# Runs


def _labels(place: _Place, labels: dict[str, Any]) -> Labels:
    for name, value in labels.items():
        place.check(value, f"label `{name}`", str, int, float, bool)
    place.get(labels, "seed", int)
    return labels


def _run(place: _Place, line: dict[str, Any], key: str, labels: Labels, config: dict[str, Any]) -> Run:
    metrics = place.get(line, "metrics", dict)
    if not metrics:
        place.refuse("`metrics` is empty")
    points = []
    for point in place.get(line, "curve", list):
        place.check(point, "a point of `curve`", dict)
        step = place.get(point, "step", int)
        points.append((step, _numbers(place, {name: value for name, value in point.items() if name != "step"})))
    if any(one[0] >= other[0] for one, other in pairwise(points)):
        place.refuse("the steps of `curve` do not rise")
    return Run(
        key=key,
        version=place.get(line, "version", str),
        labels=labels,
        config=config,
        metrics=_numbers(place, metrics),
        curve=tuple(points),
        outcome=_outcome(place, place.get(line, "outcome", dict)),
    )


def _numbers(place: _Place, values: dict[str, Any]) -> dict[str, float | None]:
    """Metrics by name. Of a ruined model they may be so large that their squares overflow: None, like infinity."""
    known = {name: place.check(value, f"`{name}`", int, float, type(None)) for name, value in values.items()}
    return {name: None if value is None or abs(value) > _LARGEST else value for name, value in known.items()}


def _outcome(place: _Place, table: dict[str, Any]) -> Outcome:
    bans = [place.check(ban, "a ban", dict) for ban in place.get(table, "bans", list, default=[])]
    removed = place.get(table, "removed", dict, default={})
    if not all(peer.isascii() and peer.isdigit() and len(peer) < 10 for peer in removed):
        place.refuse(f"`removed` must name peers by number, got {_short(sorted(removed))}")
    null = type(None)
    return Outcome(
        steps=place.get(table, "steps", int),
        liars=frozenset(place.check(peer, "a peer", int) for peer in place.get(table, "byzantine", list)),
        diverged_at=place.get(table, "diverged_at", int, null),
        bans=tuple((place.get(ban, "peer", int), place.get(ban, "step", int)) for ban in bans),
        honest_banned=place.get(table, "honest_banned", int, default=0),
        removed=tuple((int(peer), place.check(step, "a step", int)) for peer, step in removed.items()),
        assumed_byzantine=place.get(table, "assumed_byzantine", int, null, default=None),
        gradients=place.get(table, "gradients", int, float, null, default=None),
        announced_bytes_per_step=place.get(table, "announced_bytes_per_step", int, float, null, default=None),
        stalled=bool(place.get(table, "stalled", str, null, default=None)),
        agreement=place.get(table, "agreement", bool, default=True),
        unused_shards=place.get(table, "unused_shards", bool, default=False),
        absent=frozenset(place.check(peer, "a peer", int) for peer in place.get(table, "absent", list, default=[])),
    )


# The sweep's file


def _read_file(path: Path) -> Sweep:
    place = _Place(path)
    try:
        with path.open("rb") as content:
            file = parse_toml(content.read(MOST_BYTES + 1), "sweep")
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        place.refuse(str(error))
    name = place.get(file, "name", str)
    return Sweep(
        name=name,
        title=place.get(file, "title", str, default=name),
        compare=_compare(place, place.get(file, "compare", str, default=None)),
        paired=_paired(place, place.get(file, "paired", list, default=None)),
        expected=tuple(_expected(place, entry) for entry in place.get(file, "expected", list, default=[])),
        file=file,
        runs=(),
        failed=(),
        torn=False,
        planned=_planned(place, file),
    )


def _planned(place: _Place, file: dict[str, Any]) -> int | None:
    """The cells that the file describes, those among them that may turn out impossible included."""
    groups = [place.check(group, "[[groups]]", dict) for group in place.get(file, "groups", list, default=[])]
    tables = [place.get(table, "axes", dict, default={}) for table in groups or [file]]
    if not any(tables):
        return None
    seeds = len(place.get(file, "seeds", list, default=[0]))
    return seeds * sum(math.prod(len(place.get(axes, axis, list)) for axis in axes) for axes in tables)


def _place_in(file: dict[str, Any]) -> Callable[[Run], list[int]]:
    """Where the file lists a run's labels: runs end in any order, and are shown in that of the file."""
    groups = file.get("groups", [])
    listed: dict[str, list[Any]] = {"group": [group.get("name") for group in groups]}
    for table in groups or [file]:
        for axis, values in table.get("axes", {}).items():
            labels = [value.get("label") if isinstance(value, dict) else value for value in values]
            listed.setdefault(axis, []).extend(labels)

    def place(run: Run) -> list[int]:
        axes = ((listed.get(axis, []), label) for axis, label in run.labels.items() if axis != "seed")
        return [labels.index(label) if label in labels else len(labels) for labels, label in axes]

    return place


def _compare(place: _Place, text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    axes = [axis.strip() for axis in text.replace(" x ", "×").split("×")]
    if len(axes) != 2 or not all(axes):
        place.refuse(f"`compare` must be two axes, as in 'attack × defence', got {_short(text)}")
    return axes[0], axes[1]


def _paired(place: _Place, names: list[Any] | None) -> tuple[str, str] | None:
    if names is None:
        return None
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        place.refuse(f'`paired` must be two defences, as in ["troth", "mean"], got {_short(names)}')
    return names[0], names[1]


def _expected(place: _Place, entry: Any) -> Expected:
    """`{attack = "alie", accuracy = 98.0, source = "…", last = 5}`: one metric, and labels (or these in a table `labels`)."""
    place.check(entry, "[[expected]]", dict)
    labels = dict(entry)
    source, last = place.get(labels, "source", str, default=""), place.get(labels, "last", int, default=1)
    if last < 1:
        place.refuse(f"`last` of [[expected]] must be at least 1, got {last}")
    axes = place.get(entry, "labels", dict, default=None)
    metrics = {name for name in ("accuracy", "loss") if name in labels}
    if len(metrics) != 1:
        place.refuse(f"[[expected]] must have an accuracy or a loss, got {_short(sorted(labels))}")
    metric = metrics.pop()
    if axes is None:
        axes = {name: value for name, value in labels.items() if name not in ("source", "last", metric)}
    for name, value in axes.items():
        place.check(value, f"`{name}` of [[expected]]", str, int, float, bool)
    value = float(place.get(labels, metric, int, float))
    # Papers print per cent, our files hold shares: an accuracy above 1 can only be the former.
    return Expected(axes, metric, value / 100 if metric == "accuracy" and value > 1 else value, source, last)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
