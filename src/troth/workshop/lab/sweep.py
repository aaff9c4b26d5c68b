"""A sweep: the cells of a table of scenarios, made from what a file fixes and from the axes that it varies."""

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from troth.errors import OperatorError
from troth.options import declared
from troth.specs import SpecError
from troth.training import TaskError, make_task
from troth.training.tasks import DATA, data_folder
from troth.version import __version__
from troth.workshop.lab.files import AS_WRITTEN, MIXED, SweepError
from troth.workshop.simulation import Scenario

Labels = dict[str, Any]  # what each axis says of a run, and its seed


@dataclass(frozen=True)
class SweepJob:
    """One run, for any process on any machine that has the sweep's folder and its data."""

    key: str
    options: Mapping[str, Any]
    folder: str  # files that the options name are looked for here
    data: str | None  # the folder that stands for {data}

    @contextmanager
    def at_its_place(self) -> Iterator[None]:
        """Where its scenario is made and run: the folder, and the data. What the scenario says is the same on every machine."""
        with chdir(self.folder), data_folder(self.data):
            yield

    def scenario(self) -> Scenario:
        """The scenario; called at its place."""
        return Scenario(**self.options)


@dataclass(frozen=True)
class Cell:
    """A place in the table, and the run that belongs there; where nobody lies, several places have the same run."""

    labels: Labels
    job: SweepJob
    config: dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Cells that cross the same axes."""

    name: str | None
    fixed: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]  # values, or tables with a label and several options


@dataclass(frozen=True)
class Sweep:
    """A file, understood: what is run."""

    name: str
    title: str
    seeds: tuple[int, ...]
    groups: tuple[Group, ...]
    text: str  # of the file
    folder: Path  # files that it names are looked for here
    skip_impossible: bool = False
    order: str = MIXED

    @property
    def needs_data(self) -> bool:
        tables = [group.fixed for group in self.groups]
        tables += [
            _options_of(a, value) for group in self.groups for a, values in group.axes.items() for value in values
        ]
        return any(isinstance(value, str) and DATA in value for table in tables for value in table.values())

    def plan(self, *, data: Path | None = None, override: Mapping[str, Any] | None = None) -> "SweepPlan":
        """Make and check every scenario, before hours of work. `override`: options of this machine, such as its device."""
        if self.needs_data and data is None:
            raise SweepError(f"sweep '{self.name}' reads a dataset: name its folder, `data`")
        cells: list[Cell] = []
        skipped: list[tuple[Labels, str]] = []
        place = None if data is None else os.path.abspath(data)
        with chdir(self.folder), data_folder(place):
            for labels, options in self._crossed():
                try:
                    cells.append(_cell(labels, settled(options | dict(override or {})), self.folder, place))
                except OperatorError as error:
                    # A missing file, an unknown name: no question of cells.
                    nowhere = isinstance(error, SpecError | TaskError)
                    if nowhere or not self.skip_impossible:
                        way_out = "" if nowhere else " (`skip_impossible = true` leaves such runs out)"
                        raise SweepError(f"{in_words(labels)} cannot be run: {error}{way_out}") from error
                    skipped.append((labels, str(error)))
        if not cells:
            raise SweepError(f"sweep '{self.name}' has no run that is possible")
        return SweepPlan(tuple(cells), tuple(skipped), self.order)

    def _crossed(self) -> Iterator[tuple[Labels, dict[str, Any]]]:
        for group in self.groups:
            named = {} if group.name is None else {"group": group.name}
            for chosen in product(*group.axes.values()):
                labels, options = dict(named), dict(group.fixed)
                for axis, value in zip(group.axes, chosen, strict=True):
                    labels[axis] = value["label"] if isinstance(value, Mapping) else value
                    options |= check_options(_options_of(axis, value), f"axis `{axis}`")
                for seed in self.seeds:
                    yield labels | {"seed": seed}, options | {"seed": seed}


@dataclass(frozen=True)
class SweepPlan:
    """All cells in the sweep's order, and those that make no sense, with the reason."""

    cells: tuple[Cell, ...]
    skipped: tuple[tuple[Labels, str], ...]
    order: str = MIXED

    def jobs(self) -> list[SweepJob]:
        """Each run once. Ordered by key, so that long and short runs are mixed, and the time left can be told from the first; or
        as written, so that what stands first in the file is there first."""
        jobs = list({cell.job.key: cell.job for cell in self.cells}.values())
        return jobs if self.order == AS_WRITTEN else sorted(jobs, key=lambda job: job.key)

    def only(self, wanted: Mapping[str, Sequence[str]]) -> "SweepPlan":
        """The cells with one of these labels on each of these axes."""
        for axis, labels in wanted.items():
            known = {str(cell.labels[axis]) for cell in self.cells if axis in cell.labels}
            for label in labels:
                if label not in known:
                    there = f"there are {', '.join(sorted(known))}" if known else "there is no such axis"
                    raise SweepError(f"`only` {axis}={label} is no label of this sweep: {there}")
        fits = [c for c in self.cells if all(str(c.labels.get(axis)) in some for axis, some in wanted.items())]
        if not fits:
            raise SweepError("`only` leaves no run")
        return SweepPlan(tuple(fits), self.skipped, self.order)


def in_words(labels: Labels) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in labels.items())


def _cell(labels: Labels, options: dict[str, Any], folder: Path, data: str | None) -> Cell:
    config = Scenario(**options).config()
    return Cell(labels, SweepJob(key_of(config), options, str(folder), data), config)


def key_of(config: Mapping[str, Any]) -> str:
    content = json.dumps({"config": config, "version": __version__}, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _options_of(axis: str, value: Any) -> dict[str, Any]:
    options = value if isinstance(value, Mapping) else {axis: value}
    return {name: one for name, one in options.items() if name != "label"}


# Options of scenarios as a sweep's file writes them: checked one by one, named where they are wrong.

NONE = "none"  # as an attack: nobody lies
WHEN = {"early": 1 / 6, "middle": 1 / 3, "late": 2 / 3}  # start of an attack, as a share of the steps

_OF_ATTACKS = ("attack", "attack_start", "attack_every", "attack_probability", "attack_stop")
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list of texts"}


def check_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Refuse options that scenarios do not have, and values of the wrong kind; whole numbers may stand for others."""
    return {name: _checked(name, value, where) for name, value in options.items()}


def _checked(name: str, value: Any, where: str) -> Any:
    if name == "seed":
        raise SweepError(f"{where}: no `seed` here: write `seeds = [0, 1, 2]` above all tables")
    if name == "when":
        if value not in WHEN:
            raise SweepError(f"{where}: `when` is one of {', '.join(WHEN)}, got {value!r}")
        return value
    kinds = {one.name: one.kinds for one in declared(Scenario)}
    if name not in kinds:
        known = (*kinds.keys() - {"seed"}, "when")
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(sorted(known))}"
        raise SweepError(f"{where}: a scenario has no option `{name}`: {hint}")
    kind = kinds[name]
    if float in kind and type(value) is int:
        return float(value)
    if list in kind and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if Path in kind and isinstance(value, str):
        return Path(value)
    if type(value) not in kind:
        wanted = " or ".join(word for one, word in _WANTED.items() if one in kind)
        raise SweepError(f"{where}: `{name}` takes {wanted}, got {value!r}")
    return value


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a scenario: `when` becomes a step, and nothing of an attack is left where nobody lies."""
    plain = dict(options)
    when = plain.pop("when", None)
    if plain.get("attack") == NONE:
        plain |= {"byzantine": 0}
    if not plain.get("byzantine"):
        return {name: value for name, value in plain.items() if name not in _OF_ATTACKS}
    if when is not None:
        steps = plain.get("steps") or make_task(plain.get("task", Scenario.task)).steps
        plain["attack_start"] = int(WHEN[when] * steps)
    return plain
