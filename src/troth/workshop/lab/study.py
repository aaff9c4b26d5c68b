"""A sweep laid out for reporting: its axes, its cells, and for every run the one it is compared with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from troth.workshop.lab.reading import FinishedRun, FinishedSweep, Label
from troth.workshop.lab.tables import file_names, named

_SHARES = {"accuracy": True, "backdoor": False}  # name: whether more is better


@dataclass(frozen=True)
class Metric:
    """A metric of all runs. Shares are written in per cent, and their differences in points."""

    name: str
    higher: bool  # is better
    share: bool

    @property
    def factor(self) -> float:
        return 100.0 if self.share else 1.0

    @property
    def digits(self) -> int | None:
        return 1 if self.share else None

    @property
    def in_title(self) -> str:
        return ", %" if self.share else ""

    @property
    def in_points(self) -> str:
        return ", points" if self.share else ""

    def final(self, run: FinishedRun) -> float | None:
        return run.metrics.get(self.name)

    def written(self, value: float | None) -> float | None:
        return None if value is None else value * self.factor

    def scaled(self, run: FinishedRun) -> float | None:
        """The final one as it is written."""
        return self.written(self.final(run))

    def lost(self, value: float | None, reference: float | None) -> float | None:
        """How much worse than the reference, in points or in the metric's unit."""
        if value is None or reference is None:
            return None
        return (reference - value if self.higher else value - reference) * self.factor


def make_metric(name: str) -> Metric:
    return Metric(name, higher=_SHARES.get(name, False), share=name in _SHARES)


def main_metric(runs: Sequence[FinishedRun]) -> Metric:
    """The metric that the report is about: accuracy where every run has it, else the loss, else the first shared one."""
    shared = shared_metrics(runs)
    return make_metric(next((name for name in ("accuracy", "loss") if name in shared), next(iter(shared), "loss")))


def shared_metrics(runs: Sequence[FinishedRun]) -> list[str]:
    return [name for name in runs[0].metrics if all(name in run.metrics for run in runs)] if runs else []


TROTH = "troth"
MEAN = "mean"  # the defence that is none


class Study:
    """A sweep and its layout. An axis is a label that takes more than one value; the seed is none."""

    def __init__(self, sweep: FinishedSweep) -> None:
        self.sweep = sweep
        self.runs = sweep.runs
        self._calm = {(run.setting(), run.seed): run for run in reversed(self.runs) if run.calm}

    @cached_property
    def metric(self) -> Metric:
        return main_metric(self.runs)

    @cached_property
    def values(self) -> dict[str, list[Label]]:
        """Values of every label but the seed, in the order in which they appear."""
        found: dict[str, dict[Label, None]] = {}
        for run in self.runs:
            for name, value in run.labels.items():
                if name != "seed":
                    found.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in found.items()}

    @cached_property
    def axes(self) -> list[str]:
        """Labels that vary; all of them where none does, so that a table has something to name its row by."""
        return [name for name, values in self.values.items() if len(values) > 1] or list(self.values)

    @cached_property
    def numeric_axes(self) -> list[str]:
        return [axis for axis in self.axes if len(self.values[axis]) > 1 and all(map(_is_number, self.values[axis]))]

    @cached_property
    def compare(self) -> tuple[str, str] | None:
        """Rows and columns of the heat map: as the sweep says, otherwise attack and defence, otherwise the first two axes."""
        varied = [axis for axis in self.axes if len(self.values[axis]) > 1]
        for pair in (self.sweep.compare, ("attack", "defence")):
            if pair and all(axis in varied for axis in pair):
                return pair
        return (varied[0], varied[1]) if len(varied) > 1 else None

    @cached_property
    def line_axis(self) -> str | None:
        """The axis whose values are the lines of a figure."""
        if "defence" in self.axes:
            return "defence"
        others = [axis for axis in self.axes if axis != "attack"]
        return others[0] if others else next(iter(self.axes), None)

    @cached_property
    def panel_axis(self) -> str | None:
        """The axis whose values are the panels of a figure."""
        others = [axis for axis in self.axes if axis != self.line_axis]
        return "attack" if "attack" in others else next(iter(others), None)

    def rest(self, *used: str | None) -> list[str]:
        """The axes other than these."""
        return [axis for axis in self.axes if axis not in used]

    def cells(
        self, axes: Sequence[str], runs: Iterable[FinishedRun] | None = None
    ) -> dict[tuple[Label, ...], list[FinishedRun]]:
        """Runs by their labels on these axes, in the order of the axes' values."""
        found: dict[tuple[Label, ...], list[FinishedRun]] = {}
        for run in self.runs if runs is None else runs:
            found.setdefault(tuple(run.labels[axis] for axis in axes), []).append(run)
        places = [{value: at for at, value in enumerate(self.values[axis])} for axis in axes]
        return dict(
            sorted(found.items(), key=lambda cell: [place[at] for place, at in zip(places, cell[0], strict=True)])
        )

    def facets(
        self, axes: Sequence[str], runs: Iterable[FinishedRun] | None = None
    ) -> list[tuple[str, str, list[FinishedRun]]]:
        """What is drawn apart: for each combination of these axes' values the end of its title and of its file's name, and its
        runs."""
        cells = self.cells(axes, runs)
        if not axes:
            return [("", "", some) for some in cells.values()]
        words = [named(dict(zip(axes, key, strict=True)), axes) for key in cells]
        ends = ((f": {one}", f"-{name}") for one, name in zip(words, file_names(words), strict=True))
        return [(*end, some) for end, some in zip(ends, cells.values(), strict=True)]

    # Comparisons

    def without_attack(self, run: FinishedRun) -> FinishedRun | None:
        """The same run, seed and defence, without liars."""
        return self._calm.get((run.setting(), run.seed))

    def plain_mean(self, run: FinishedRun) -> FinishedRun | None:
        """A run of the plain mean without liars and with this seed: the one with the most labels in common."""
        task = run.config.get("task")
        others = [other for other in self._means.get(run.seed, ()) if other.config.get("task") == task]
        return max(others, key=lambda other: len(other.labels.items() & run.labels.items()), default=None)

    @cached_property
    def _means(self) -> dict[int, list[FinishedRun]]:
        found: dict[int, list[FinishedRun]] = {}
        for run in self.runs:
            if run.defence == MEAN and run.calm:
                found.setdefault(run.seed, []).append(run)
        return found


def _is_number(value: Label) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
