"""The folder of a sweep's results: a line for each run, kept as soon as it is there, and put in order at the end."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from troth.files import lock_folder, write_bytes, write_text
from troth.lab.files import RESULTS, SET_ASIDE, SWEEP, TIMES, SweepError, convert, read_lines
from troth.lab.sweeps.sweep import Cell, Sweep
from troth.version import __version__


class _Head(Struct):
    """Parts of a line by which a run is found again."""

    key: str
    labels: dict[str, Any]


class Store:
    """Results of one sweep. `done` holds those that are there, by key and labels."""

    def __init__(self, folder: Path, sweep: Sweep, cells: Sequence[Cell], *, extend: bool = False) -> None:
        """Open a folder, or make one, for this process alone. Lines that are not this sweep's are refused, or with `extend` set
        aside."""
        self.folder = folder
        self._sweep = sweep
        self._cells = {_place(cell.job.key, cell.labels): cell for cell in cells}
        self._by_key: dict[str, list[Cell]] = {}
        for cell in cells:
            self._by_key.setdefault(cell.job.key, []).append(cell)
        self._lines: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Two that write here would each replace the file by what it knows, and lose the other's runs.
            lock = lock_folder(folder)
            if lock is None:
                raise SweepError(
                    f"another 'troth lab run' writes to `out` {folder}: wait for it, or choose another folder"
                )
            with ExitStack() as undone:
                undone.callback(lock.release)
                self._open(extend=extend)
                undone.pop_all()
        except OSError as error:
            raise SweepError(f"cannot write to `out` {folder}: {error.strerror}; choose another folder") from error
        self._lock = lock

    def _open(self, *, extend: bool) -> None:
        folder, foreign = self.folder, self._take_in()
        if foreign and not extend:
            raise SweepError(_whose(folder, foreign[0], len(foreign)))
        if foreign:
            with (folder / SET_ASIDE).open("ab") as aside:
                aside.writelines(map(_to_line, foreign))
        if (folder / RESULTS).exists():  # without torn and foreign lines, and those of runs that failed
            _write_lines(folder / RESULTS, list(self._lines.values()))
        _cut_torn_end(folder / TIMES)
        write_text(folder / SWEEP, self._sweep.text)
        self._file = (folder / RESULTS).open("ab")

    def _take_in(self) -> list[dict[str, Any]]:
        """Remember the results that are there; give those that belong to no cell. A run that failed is made again."""
        foreign = []
        for line in read_lines(self.folder / RESULTS, _checked_line)[0]:
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
        lines = {}
        for cell in self._by_key[key]:
            head = {"key": key, "version": __version__, "sweep": self._sweep.name}
            lines[_place(key, cell.labels)] = {**head, "labels": cell.labels, "config": cell.config, **found}
        try:
            self._lines |= lines  # first: `close`, after an interrupt, would drop from the file what is not here
            self._file.write(b"".join(map(_to_line, lines.values())))
            self._file.flush()
            os.fsync(self._file.fileno())
            with (self.folder / TIMES).open("ab") as file:
                file.write(_to_line({"key": key, "seconds": round(seconds, 3), "machine": machine()}))
        except OSError as error:
            raise self._stopped(error) from error

    def close(self) -> None:
        """Put what is there into the sweep's order: with all runs, the same file however they were made."""
        try:
            with suppress(OSError):  # what could not be written before cannot be now; it is told already
                self._file.close()
            _write_lines(self.folder / RESULTS, [self._lines[place] for place in self._cells if place in self._lines])
        except OSError as error:
            raise self._stopped(error) from error
        finally:
            self._lock.release()

    def _stopped(self, error: OSError) -> SweepError:
        return SweepError(
            f"cannot write to `out` {self.folder}: {error.strerror}; the runs that were kept are there, and the same command "
            "goes on from them"
        )


def machine() -> str:
    """Where a run was made: bits, and times, depend on it."""
    import torch

    return f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"


def _checked_line(line: dict[str, Any]) -> dict[str, Any]:
    convert(line, _Head)
    return line


def _cut_torn_end(path: Path) -> None:
    """Drop the end of a line that was not written whole: the next would be glued to it."""
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        write_bytes(path, content[: content.rfind(b"\n") + 1])


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    write_bytes(path, b"".join(map(_to_line, lines)))


def _to_line(line: Mapping[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, allow_nan=False, default=str) + "\n"
    return text.encode(errors="backslashreplace")  # half a surrogate pair, in an error's text: as JSON escapes it


def _place(key: str, labels: Mapping[str, Any]) -> str:
    return key + json.dumps(labels, sort_keys=True, default=str)


def _whose(folder: Path, line: Mapping[str, Any], count: int) -> str:
    other = f"version {line['version']}" if line.get("version") != __version__ else f"sweep '{line.get('sweep')}'"
    return (
        f"{folder} holds {count} runs that are not this sweep's, of {other}: choose another `out`, "
        f"or `extend` it: then they go to {SET_ASIDE}"
    )
