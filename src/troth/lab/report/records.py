"""Results of a sweep as values: its runs, those that failed, and what its file says about them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

from troth.errors import printable
from troth.lab.files import SweepFile

Label = str | int | float | bool
Labels = dict[str, Label]
Metrics = dict[str, float | None]

_LARGEST = 1e100  # of a ruined model's metrics: above, their squares overflow
_OF_THE_ATTACK = frozenset(  # `code` has the digests of users' files, an attack's among them
    [
        "attack",
        "attack_start",
        "attack_every",
        "attack_probability",
        "attack_stop",
        "byzantine",
        "beyond_guarantee",
        "code",
    ]
)


class Ban(Struct, frozen=True):
    """A peer, and the step after which it was out."""

    peer: int
    step: int


class Outcome(Struct, frozen=True, kw_only=True):
    """How a run went, apart from its metrics."""

    steps: int
    liars: frozenset[int] = field(name="byzantine")
    diverged_at: int | None
    bans: tuple[Ban, ...] = ()
    honest_banned: int = 0
    removed: dict[int, int] = {}  # step by peer: dropped for good by a rule with memory
    assumed_byzantine: int | None = (
        None  # liars that the rule was told of, where its guarantee covers fewer than there are
    )
    stalled: str | None = None  # why too few were left to go on
    agreement: bool = True  # of the honest, on record, roster and model
    unused_shards: bool = False  # the task gives peers data of their own, which the protocol does not use
    absent: frozenset[int] = frozenset()  # left without a ban


class Run(Struct, frozen=True, kw_only=True, dict=True):
    """One line of `results.jsonl`."""

    key: str
    version: str
    labels: Labels
    config: dict[str, Any]
    metrics: Metrics
    points: tuple[Metrics, ...] = field(name="curve")  # each with its `step`
    outcome: Outcome
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
class Expected:
    """A published figure, for the cells that have these labels."""

    labels: Labels
    metric: str
    value: float
    source: str
    last: int  # evaluations at the end of a run whose mean is compared


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder, read."""

    file: SweepFile
    compare: tuple[str, str] | None
    expected: tuple[Expected, ...]
    runs: tuple[Run, ...]
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


def show(value: object, longest: int = 60) -> str:
    """A label as a reader sees it: one line, bounded, numbers short."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    text = printable(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def named(labels: Labels, axes: Sequence[str]) -> str:
    """`schedule early, tau 0.5`."""
    return ", ".join(f"{show(axis)} {show(labels[axis])}" for axis in axes)


def file_names(texts: Sequence[str]) -> list[str]:
    """A name for each of these texts, of few and harmless characters; equal ones get numbers."""
    names = [re.sub(r"[^A-Za-z0-9.]+", "-", text)[:40].strip("-.") or "x" for text in texts]
    return [name if names.count(name) == 1 else f"{name}-{at}" for at, name in enumerate(names, 1)]
