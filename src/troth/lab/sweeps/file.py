"""The form of a sweep's file: which keys there are, read strictly."""

import re
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from troth.bounded_toml import MOST_BYTES, parse_toml
from troth.errors import printable
from troth.lab.sweeps.options import SweepError, check_options
from troth.lab.sweeps.sweep import MIXED, ORDERS, Group, Sweep

_MOST_RUNS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _Group(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    fixed: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}


class _File(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    title: str = ""
    about: str = ""
    seeds: tuple[int, ...] = (0,)
    skip_impossible: bool = False
    order: str = MIXED
    fixed: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}
    groups: list[_Group] = []
    compare: str = ""
    paired: list[str] = []
    expected: list[dict[str, Any]] = []
    fit: dict[str, Any] = {}


def read_sweep(path: Path, folder: Path | None = None) -> Sweep:
    """Read a sweep's file. Files that it names are looked for beside it, or in `folder`."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror}") from error
    try:
        return parse_sweep(content.decode(), folder or path.parent)
    except UnicodeDecodeError as error:
        raise SweepError(f"{path} is not UTF-8: {error.reason}") from error
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from error


def parse_sweep(text: str, folder: Path) -> Sweep:
    try:
        file = msgspec.convert(parse_toml(text.encode(), "sweep"), _File)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise SweepError(printable(str(error))) from error
    if not _NAME.fullmatch(file.name):
        raise SweepError(
            f"`name` is of letters, digits, dots and dashes, since a folder is named so; got {file.name!r}"
        )
    if not file.seeds or len(set(file.seeds)) != len(file.seeds):
        raise SweepError(f"`seeds` is a list of different whole numbers, got {list(file.seeds)}")
    if file.order not in ORDERS:
        raise SweepError(f"`order` is one of {', '.join(ORDERS)}, got {file.order!r}")
    if file.groups and file.axes:
        raise SweepError("`axes` stands either above all, or in each of the `groups`")
    fixed = check_options(file.fixed, "[fixed]")
    groups = tuple(
        Group(group.name, fixed | check_options(group.fixed, f"group '{group.name}'"), _checked_axes(group.axes))
        for group in file.groups
    ) or (Group(None, fixed, _checked_axes(file.axes)),)
    if len({frozenset(group.axes) for group in groups}) > 1:
        raise SweepError("all `groups` have the same axes, else their runs would have no table in common")
    if len({group.name for group in groups}) != len(groups):
        raise SweepError("two `groups` have the same name")
    sweep = Sweep(
        name=file.name,
        title=file.title or file.name,
        seeds=file.seeds,
        groups=groups,
        text=text,
        folder=folder.resolve(),
        skip_impossible=file.skip_impossible,
        order=file.order,
        report={"compare": file.compare, "paired": file.paired, "expected": file.expected, "fit": file.fit},
    )
    _check_size(sweep)
    return sweep


def _checked_axes(axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
    for axis, values in axes.items():
        if axis in ("seed", "group", "label"):
            raise SweepError(f"an axis cannot be called `{axis}`")
        if not values:
            raise SweepError(f"axis `{axis}` is empty")
        labels = [value.get("label") if isinstance(value, dict) else value for value in values]
        for value, label in zip(values, labels, strict=True):
            if not isinstance(label, str | int | float) or (isinstance(label, float) and not isfinite(label)):
                raise SweepError(f"axis `{axis}`: {value!r} is neither a value nor a table with a `label`")
        if len({str(label) for label in labels}) != len(labels):
            raise SweepError(f"axis `{axis}` has a label twice: {', '.join(map(str, labels))}")
    return axes


def _check_size(sweep: Sweep) -> None:
    runs = 0
    for group in sweep.groups:
        count = len(sweep.seeds)
        for values in group.axes.values():
            count *= len(values)
        runs += count
    if runs > _MOST_RUNS:
        raise SweepError(f"these axes make {runs:,} runs; at most {_MOST_RUNS:,} fit into one sweep")
