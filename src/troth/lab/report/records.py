"""Results of a sweep as values: its runs, those that failed, and what its file says about them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from troth.errors import printable

Label = str | int | float | bool
Labels = dict[str, Label]
_OF_THE_ATTACK = frozenset(  # `code` has the digests of users' files, an attack's among them
    (
        "attack",
        "attack_start",
        "attack_every",
        "attack_probability",
        "attack_stop",
        "byzantine",
        "beyond_guarantee",
        "code",
    )
)


@dataclass(frozen=True)
class Outcome:
    """How a run went, apart from its metrics."""

    steps: int
    liars: frozenset[int]
    diverged_at: int | None
    bans: tuple[tuple[int, int], ...]  # (peer, step)
    honest_banned: int
    removed: tuple[tuple[int, int], ...]  # (peer, step): dropped for good by a rule with memory
    assumed_byzantine: int | None  # liars that the rule was told of, where its guarantee covers fewer than there are
    gradients: float | None
    announced_bytes_per_step: float | None
    stalled: bool = False  # too few were left to go on
    agreement: bool = True  # of the honest, on record, roster and model
    unused_shards: bool = False  # the task gives peers data of their own, which the protocol does not use
    absent: frozenset[int] = frozenset()  # left without a ban


@dataclass(frozen=True)
class Run:
    """One line of `results.jsonl`."""

    key: str
    version: str
    labels: Labels
    config: dict[str, Any]
    metrics: dict[str, float | None]
    curve: tuple[tuple[int, dict[str, float | None]], ...]  # (step, metrics)
    outcome: Outcome
    seconds: float | None = None

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
        for peer, step in sorted((*self.outcome.bans, *self.outcome.removed), key=lambda ban: ban[1]):
            gone.setdefault(peer, step)
        return gone

    @property
    def liars_out(self) -> list[int]:
        """Steps after which liars were out, in order."""
        return sorted(step for peer, step in self.out.items() if peer in self.outcome.liars)

    @property
    def honest_out(self) -> int:
        return max(self.outcome.honest_banned, len(self.out.keys() - self.outcome.liars))

    def held(self, steps: Iterable[int]) -> tuple[tuple[int, dict[str, float | None]], ...]:
        """The curve, and after the end of a run that ended early its last point at these steps: its model stays as it is.

        Else a mean over seeds would rise once the worst of them is gone, and nobody would see what was lost."""
        if not self.curve:
            return ()
        end, last = self.curve[-1]
        return (*self.curve, *((step, last) for step in sorted(steps) if step > end))

    def setting(self) -> str:
        """The configuration apart from the attack: equal for a run and for the same run without liars."""
        return repr(sorted((name, repr(value)) for name, value in self.config.items() if name not in _OF_THE_ATTACK))


@dataclass(frozen=True)
class FailedRun:
    """A run that ended in an error."""

    labels: Labels
    error: str


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

    name: str
    title: str
    compare: tuple[str, str] | None
    paired: tuple[str, str] | None
    expected: tuple[Expected, ...]
    file: dict[str, Any]  # the whole of `sweep.toml`, for sections that others add
    runs: tuple[Run, ...]
    failed: tuple[FailedRun, ...]
    torn: bool  # the last line is cut off: the sweep is unfinished
    planned: int | None = None  # cells that its file describes; None where it does not say
    machines: tuple[str, ...] = ()  # where its runs were made, as far as times are there

    @property
    def missing(self) -> int:
        """Cells that have neither a result nor an error."""
        return max(0, (self.planned or 0) - len(self.runs) - len(self.failed))

    @property
    def unfinished(self) -> bool:
        """Cells may be missing for good where the sweep leaves out impossible ones."""
        return self.torn or (self.missing > 0 and not self.file.get("skip_impossible"))


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
