"""Results of a sweep as values, read strictly from its folder: a report of a damaged file would look like any other."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

from troth.errors import printable
from troth.workshop.lab.files import RESULTS, SWEEP, TIMES, SweepError, SweepFile, convert, read_lines, read_toml

Label = str | int | float | bool
Labels = dict[str, Label]
Metrics = dict[str, float | None]

_LARGEST = 1e100  # of a ruined model's metrics: above, their squares overflow
# `files` has the digests of users' files, an attack's among them.
_OF_THE_ATTACK = frozenset(
    [
        "attack",
        "attack_start",
        "attack_every",
        "attack_probability",
        "attack_stop",
        "byzantine",
        "beyond_guarantee",
        "files",
    ]
)


class RecordedBan(Struct, frozen=True):
    """A peer, and the step after which it was out."""

    peer: int
    step: int


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How a run went, apart from its metrics."""

    steps: int
    liars: frozenset[int] = field(name="byzantine")
    diverged_at: int | None
    bans: tuple[RecordedBan, ...] = ()
    honest_banned: int = 0
    removed: dict[int, int] = {}  # step by peer: dropped for good by a rule with memory
    assumed_byzantine: int | None = (
        None  # liars that the rule was told of, where its guarantee covers fewer than there are
    )
    stalled: str | None = None  # why too few were left to go on
    agreement: bool = True  # of the honest, on record, roster and model
    unused_shards: bool = False  # the task gives peers data of their own, which the protocol does not use
    absent: frozenset[int] = frozenset()  # left without a ban


class FinishedRun(Struct, frozen=True, kw_only=True, dict=True):
    """One line of `results.jsonl`."""

    key: str
    version: str
    labels: Labels
    config: dict[str, Any]
    metrics: Metrics
    points: tuple[Metrics, ...] = field(name="curve")  # each with its `step`
    outcome: RunOutcome
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_labels(self.labels)
        if not self.metrics:
            raise ValueError("`metrics` is empty")
        steps = [point.get("step") for point in self.points]
        if not all(step is not None and step == int(step) for step in steps):
            raise ValueError("a point of `curve` has no `step`")
        if any(one >= other for one, other in pairwise(steps)):  # type: ignore[operator]
            raise ValueError("the steps of `curve` do not rise")
        force_setattr(self, "metrics", _bounded(self.metrics))
        force_setattr(self, "points", tuple(map(_bounded, self.points)))

    @cached_property
    def curve(self) -> tuple[tuple[int, Metrics], ...]:
        """Metrics by step."""
        return tuple((int(point["step"] or 0), point) for point in self.points)

    @property
    def seed(self) -> int:
        return int(self.labels["seed"])

    @property
    def calm(self) -> bool:
        """Whether nobody lies in it."""
        return not self.outcome.liars

    @property
    def defence(self) -> str:
        return str(self.config.get("defence", self.labels.get("defence", "")))

    @property
    def attack_start(self) -> int:
        start = self.config.get("attack_start", 0)
        return start if isinstance(start, int) else 0

    @property
    def out(self) -> dict[int, int]:
        """Steps by peer: who was banned or removed, and when first."""
        gone: dict[int, int] = {}
        bans = ((ban.peer, ban.step) for ban in self.outcome.bans)
        for peer, step in sorted((*bans, *self.outcome.removed.items()), key=lambda ban: ban[1]):
            gone.setdefault(peer, step)
        return gone

    @property
    def liars_out(self) -> list[int]:
        """Steps after which liars were out, in order."""
        return sorted(step for peer, step in self.out.items() if peer in self.outcome.liars)

    @property
    def steps_to_last_ban(self) -> int | None:
        """From the attack's start to the last liar's ban; None where one stayed."""
        gone = self.liars_out
        return gone[-1] - self.attack_start if gone and len(gone) == len(self.outcome.liars) else None

    @property
    def honest_out(self) -> int:
        return max(self.outcome.honest_banned, len(self.out.keys() - self.outcome.liars))

    def held(self, steps: Iterable[int]) -> tuple[tuple[int, Metrics], ...]:
        """The curve, and after the end of a run that ended early its last point at these steps: its model stays as it is.

        Else a mean over seeds would rise once the worst of them is gone, and nobody would see what was lost."""
        if not self.curve:
            return ()
        end, last = self.curve[-1]
        return (*self.curve, *((step, last) for step in sorted(steps) if step > end))

    def setting(self) -> str:
        """The configuration apart from the attack: equal for a run and for the same run without liars."""
        return repr(sorted((name, repr(value)) for name, value in self.config.items() if name not in _OF_THE_ATTACK))


class FailedRun(Struct, frozen=True):
    """A run that ended in an error."""

    key: str
    labels: Labels
    error: str

    def __post_init__(self) -> None:
        check_labels(self.labels)


@dataclass(frozen=True)
class ExpectedResult:
    """A published figure, for the cells that have these labels."""

    labels: Labels
    metric: str
    value: float
    source: str
    last: int  # evaluations at the end of a run whose mean is compared


@dataclass(frozen=True)
class FinishedSweep:
    """A sweep's folder, read."""

    file: SweepFile
    compare: tuple[str, str] | None
    expected: tuple[ExpectedResult, ...]
    runs: tuple[FinishedRun, ...]
    failed: tuple[FailedRun, ...]
    torn: bool  # the last line is cut off: the sweep is unfinished
    machines: tuple[str, ...] = ()  # where its runs were made, as far as times are there

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def title(self) -> str:
        return self.file.title or self.file.name

    @property
    def planned(self) -> int:
        """Cells that its file describes; 0 where it does not say."""
        return self.file.cells if any(self.file.tables_of_axes) else 0

    @property
    def missing(self) -> int:
        """Cells that have neither a result nor an error."""
        return max(0, self.planned - len(self.runs) - len(self.failed))

    @property
    def unfinished(self) -> bool:
        """Cells may be missing for good where the sweep leaves out impossible ones."""
        return self.torn or (self.missing > 0 and not self.file.skip_impossible)


def check_labels(labels: Labels) -> None:
    if type(labels.get("seed")) is not int:
        raise ValueError("`labels` has no `seed` that is a whole number")


def _bounded(metrics: Metrics) -> Metrics:
    return {name: None if value is None or abs(value) > _LARGEST else value for name, value in metrics.items()}


# Reading


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


def read_results(folder: Path) -> FinishedSweep:
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
