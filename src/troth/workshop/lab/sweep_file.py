"""The form of a sweep's file: which keys there are, read strictly."""

import re
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from troth.workshop.lab.files import AS_WRITTEN, MIXED, SweepError, SweepFile, parse_file, read_toml
from troth.workshop.lab.sweep import Group, Sweep, check_options
from troth.workshop.simulation import Scenario

_MOST_RUNS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_sweep(path: Path, folder: Path | None = None) -> Sweep:
    """Read a sweep's file. Files that it names are looked for beside it, or in `folder`."""
    file, text = read_toml(path)
    try:
        return _checked(file, text, folder or path.parent)
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from error


def parse_sweep(text: str, folder: Path) -> Sweep:
    return _checked(parse_file(text), text, folder)


def _checked(file: SweepFile, text: str, folder: Path) -> Sweep:
    if not _NAME.fullmatch(file.name):
        raise SweepError(
            f"`name` is of letters, digits, dots and dashes, since a folder is named so; got {file.name!r}"
        )
    if not file.seeds or len(set(file.seeds)) != len(file.seeds):
        raise SweepError(f"`seeds` is a list of different whole numbers, got {list(file.seeds)}")
    if file.order not in (MIXED, AS_WRITTEN):
        raise SweepError(f"`order` is one of {MIXED}, {AS_WRITTEN}, got {file.order!r}")
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
    if file.cells > _MOST_RUNS:
        raise SweepError(f"these axes make {file.cells:,} runs; at most {_MOST_RUNS:,} fit into one sweep")
    return Sweep(
        name=file.name,
        title=file.title or file.name,
        seeds=file.seeds,
        groups=groups,
        text=text,
        folder=folder.resolve(),
        skip_impossible=file.skip_impossible,
        order=file.order,
    )


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


# Comparisons: the same run with and without liars, under several defences.


def contenders(scenario: Scenario, defences: tuple[str, ...]) -> dict[str, Scenario]:
    """Scenarios by label: no liars with the plain mean, then the same liars against each defence."""
    calm = {"no attack, plain mean": replace(scenario, byzantine=0, defence="mean")}
    return calm | {f"under attack, {name}": replace(scenario, defence=name) for name in defences}
