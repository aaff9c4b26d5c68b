"""The folder of a sweep's results: a line for each run, kept as soon as it is there, and put in order at the end.

results.jsonl    one line a run: labels, configuration, metrics, curve, outcome; the same bytes for the same sweep
times.jsonl      how long each run took, and where
sweep.toml       the sweep itself
set-aside.jsonl  lines of runs that a changed sweep, or another version, no longer has
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from troth.errors import OperatorError
from troth.files import write_text
from troth.lab.sweeps.options import SweepError
from troth.lab.sweeps.sweep import Cell, Sweep
from troth.version import __version__

RESULTS, TIMES, SWEEP, SET_ASIDE = "results.jsonl", "times.jsonl", "sweep.toml", "set-aside.jsonl"


class Store:
    """Results of one sweep. `done` holds those that are there, by key and labels."""

    def __init__(self, folder: Path, sweep: Sweep, cells: Sequence[Cell], *, extend: bool = False) -> None:
        """Open a folder, or make one. Lines that are not this sweep's are refused, or with `extend` set aside."""
        self.folder = folder
        self._sweep = sweep
        self._cells = {_place(cell.job.key, cell.labels): cell for cell in cells}
        self._by_key: dict[str, list[Cell]] = {}
        for cell in cells:
            self._by_key.setdefault(cell.job.key, []).append(cell)
        self._lines: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            foreign = self._take_in()
            if foreign and not extend:
                raise SweepError(_whose(folder, foreign[0], len(foreign)))
            if foreign:
                with (folder / SET_ASIDE).open("a", encoding="utf-8") as aside:
                    aside.writelines(map(_to_line, foreign))
            if (folder / RESULTS).exists():  # without torn and foreign lines, and those of runs that failed
                _write_lines(folder / RESULTS, list(self._lines.values()))
            write_text(folder / SWEEP, sweep.text)
            self._file = (folder / RESULTS).open("a", encoding="utf-8")
        except OSError as error:
            raise SweepError(f"cannot write to `out` {folder}: {error.strerror}; choose another folder") from error

    def _take_in(self) -> list[dict[str, Any]]:
        """Remember the results that are there; give those that belong to no cell. A run that failed is made again."""
        foreign = []
        for line in read_lines(self.folder / RESULTS, cut=True):
            place = _place(line["key"], line["labels"])
            if "error" in line:
                continue
            if place in self._cells:
                self._lines[place] = line
            else:
                foreign.append(line)
        return foreign

    @property
    def missing(self) -> set[str]:
        """Keys of the runs that are still to be made."""
        return {cell.job.key for place, cell in self._cells.items() if place not in self._lines}

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [line for line in self._lines.values() if "error" in line]

    def add(self, key: str, found: Mapping[str, Any], seconds: float) -> None:
        """Keep a run's results at once, for every cell that it belongs to."""
        for cell in self._by_key[key]:
            head = {"key": key, "version": __version__, "sweep": self._sweep.name}
            line = {**head, "labels": cell.labels, "config": cell.config, **found}
            self._lines[_place(key, cell.labels)] = line
            self._file.write(_to_line(line))
        self._file.flush()
        os.fsync(self._file.fileno())
        with (self.folder / TIMES).open("a", encoding="utf-8") as file:
            file.write(_to_line({"key": key, "seconds": round(seconds, 3), "machine": machine()}))

    def close(self) -> None:
        """Put what is there into the sweep's order: with all runs, the same file however they were made."""
        self._file.close()
        _write_lines(self.folder / RESULTS, [self._lines[place] for place in self._cells if place in self._lines])


def machine() -> str:
    """Where a run was made: bits, and times, depend on it."""
    import torch

    return f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"


def read_lines(path: Path, *, cut: bool = False) -> list[dict[str, Any]]:
    """Lines of a file of results, if there is one. A last line without an end is a run that was not kept; `cut` allows it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise SweepError(f"cannot read {path}: {error}") from error
    *whole, torn = text.split("\n")
    if torn and not cut:
        raise SweepError(f"{path}: the last line is torn")
    lines = []
    for number, line in enumerate(whole, start=1):
        try:
            lines.append(_checked_line(json.loads(line)))
        except ValueError as error:
            raise SweepError(f"{path}, line {number} is no result: {error}; move the file away") from error
    return lines


def _checked_line(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or not isinstance(line.get("key"), str):
        raise OperatorError("it has no key")
    if not isinstance(line.get("labels"), dict):
        raise OperatorError("it has no labels")
    return line


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    write_text(path, "".join(map(_to_line, lines)))


def _to_line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _place(key: str, labels: Mapping[str, Any]) -> str:
    return key + json.dumps(labels, sort_keys=True, default=str)


def _whose(folder: Path, line: Mapping[str, Any], count: int) -> str:
    other = f"version {line['version']}" if line.get("version") != __version__ else f"sweep '{line.get('sweep')}'"
    return (
        f"{folder} holds {count} runs that are not this sweep's, of {other}: choose another `out`, "
        f"or `extend` it: then they go to {SET_ASIDE}"
    )
