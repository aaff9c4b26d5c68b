"""Files of a sweep's folder, as those who write them and those who report on them know them; read strictly, and without PyTorch.

results.jsonl    one line a run: labels, configuration, metrics, curve, outcome; the same bytes for the same sweep
times.jsonl      how long each run took, and where
sweep.toml       the sweep itself
set-aside.jsonl  lines of runs that a changed sweep, or another version, no longer has
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from troth.errors import OperatorError, printable
from troth.files import MOST_BYTES, parse_toml

RESULTS, TIMES, SWEEP, SET_ASIDE = "results.jsonl", "times.jsonl", "sweep.toml", "set-aside.jsonl"
MIXED, AS_WRITTEN = "mixed", "as written"

T = TypeVar("T")


class SweepError(OperatorError):
    """A sweep that cannot be run, or results that are not its own or malformed; the message names the place."""


class GroupTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several tables of a sweep; they have the same axes, with values of their own."""

    name: str
    fixed: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}  # values, or tables with a label and several options


class SweepFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The entries of `sweep.toml`: what is run, and what its report is told."""

    name: str
    title: str = ""
    about: str = ""
    seeds: tuple[int, ...] = (0,)
    skip_impossible: bool = False
    order: str = MIXED
    fixed: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}
    groups: list[GroupTable] = []
    compare: str = ""
    paired: Annotated[tuple[str, ...], Meta(min_length=2)] | None = None  # each against the last
    expected: list[dict[str, Any]] = []
    fit: dict[str, Any] = {}

    @property
    def tables_of_axes(self) -> list[dict[str, list[Any]]]:
        return [group.axes for group in self.groups] or [self.axes]

    @property
    def cells(self) -> int:
        """How many runs the axes make, impossible ones included."""
        return len(self.seeds) * sum(math.prod(map(len, axes.values())) for axes in self.tables_of_axes)


def read_toml(path: Path) -> tuple[SweepFile, str]:
    """The entries of a sweep's file, and its text."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
        return parse_file(text), text
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SweepError(f"{path} is not UTF-8: {error.reason}") from error
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from error


def parse_file(text: str) -> SweepFile:
    try:
        return convert(parse_toml(text.encode(), "sweep"), SweepFile)
    except (ValueError, RecursionError) as error:
        raise SweepError(printable(str(error))) from error


def read_lines(path: Path, read: Callable[[dict[str, Any]], T]) -> tuple[list[T], bool]:
    """What `read` makes of each line's object, and whether the last line is cut off: it has no end, and is left out."""
    try:
        *whole, torn = path.read_bytes().split(b"\n")  # bytes: a torn line may end within a character
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror}") from error
    found = []
    for number, line in enumerate(whole, 1):
        try:
            value = json.loads(line.decode(), parse_constant=_finite, parse_float=_finite)
            found.append(read(convert(value, dict[str, Any])))
        except (ValueError, RecursionError) as error:
            raise SweepError(printable(f"{path}, line {number}: {str(error) or 'nested too deeply'}")) from error
    return found, bool(torn)


def convert(value: Any, kind: type[T]) -> T:
    """Check a value of JSON or TOML against a declared kind; raises `ValueError`."""
    return msgspec.convert(value, kind, str_keys=True)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return value
