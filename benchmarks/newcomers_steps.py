"""The price of newcomers in founders' steps: downloads, killed founders, and both at once, one after another in one run.

    python -m benchmarks.newcomers_steps [PARAMETERS [ROUNDS]]

In every round, with quiet steps between: a stranger fetches the state; another one does, and a founder is killed when half has come;
a founder is killed at the same moment of a step while nobody fetches anything. Strangers are killed when they have caught up, and
founders are started again. Prints the table of results-newcomers.md.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.newcomers_peers import Peers, Setting, Step, peers_of

SIZE, ROUNDS = 25_000_000, 4
VICTIM = "founder0"
_FIRST = 3  # steps that are not counted: memory is taken for the first time
_QUIET = 4  # steps between two events
_PROBATION = 16  # a slot is lost if the download takes longer; slots are given away every four steps

QUIET = "quiet: four founders"
KNOCKING = "a stranger starts, follows, and waits for a slot"
DOWNLOAD = "a stranger downloads, nobody is killed"
KILLED = "a founder is killed, nobody downloads"
BOTH = "a founder is killed during a download"
AFTERWARDS = "the rest of a download after a founder was killed"
RETURN = "a founder is gone, or comes back"
KINDS = (QUIET, KNOCKING, DOWNLOAD, KILLED, BOTH, AFTERWARDS, RETURN)


@dataclass(frozen=True)
class Period:
    """What happened from one moment to another."""

    kind: str
    since: float
    until: float

    def overlaps(self, step: Step) -> bool:
        return self.since < step.ended and self.until > step.began


@dataclass
class Measured:
    """Steps of a founder by what happened in them."""

    steps: dict[str, list[float]]
    downloads: list[float]  # seconds from the first chunk to the last, with nobody killed
    half_way: list[float]  # seconds into the step at which the founder was killed

    def ratio(self, kind: str, to: str) -> float:
        return statistics.median(self.steps[kind]) / statistics.median(self.steps[to])

    def rows(self) -> list[str]:
        found = [(kind, self.steps[kind]) for kind in KINDS if self.steps[kind]]
        return [
            f"| {kind} | {len(some)} | {statistics.median(some):.2f} | {min(some):.2f}–{max(some):.2f} | "
            f"{self.ratio(kind, QUIET):.2f} |"
            for kind, some in found
        ]


@dataclass
class _Story:
    """The rounds, and what happened when."""

    peers: Peers
    state: int  # bytes
    periods: list[Period] = field(default_factory=list)
    downloads: list[float] = field(default_factory=list)
    half_way: list[float] = field(default_factory=list)
    came: int = 0  # strangers so far

    def download(self, kill: str | None = None) -> None:
        """Let a stranger fetch the state, and kill somebody when half of it has come."""
        peers, name = self.peers, f"stranger{self.came}"
        self.came += 1
        started = time.monotonic()
        peers.start(name)
        first = peers.until(lambda: peers.chunk_bytes(name))
        self.periods.append(Period(KNOCKING, started, first))
        killed = None
        if kill is not None:
            peers.until(lambda: peers.chunk_bytes(name) >= self.state / 2)
            killed = peers.kill(kill)
            self.half_way.append(killed - peers.steps[-1].ended)
            self.periods.append(Period(BOTH, killed, killed))
        peers.until(lambda: peers.has_stepped(name))
        last = max(float(one["at"]) for one in peers.told(name) if one["what"] in ("chunk", "replayed"))
        self.downloads += [last - first] if killed is None else []
        self.periods.append(Period(DOWNLOAD if killed is None else AFTERWARDS, killed or first, last))
        if killed is not None:
            self.periods.append(Period(DOWNLOAD, first, killed))
        ended = peers.kill(name)
        self.periods.append(Period(KNOCKING, last, ended))  # it observed a step, which others have to serve
        if killed is not None:
            self.come_back(killed)

    def kill(self) -> None:
        """Kill a founder at the moment of a step at which the last one was killed, while nobody downloads."""
        count = len(self.peers.steps)
        self.peers.until(lambda: len(self.peers.steps) > count)
        end = self.peers.steps[-1].ended + self.half_way[-1]
        self.peers.until(lambda: time.monotonic() >= end)
        killed = self.peers.kill(VICTIM)
        self.periods.append(Period(KILLED, killed, killed))
        self.peers.let_steps_pass(2)
        self.come_back(killed)

    def come_back(self, killed: float) -> None:
        peers, count = self.peers, len(self.peers.steps)
        peers.start(VICTIM)
        back = peers.until(lambda: any(step.returned for step in peers.steps[count:]))
        self.periods.append(Period(RETURN, killed, back))

    def quiet(self, count: int = _QUIET) -> None:
        self.peers.let_steps_pass(count)

    def sorted(self) -> Measured:
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for step in self.peers.steps[_FIRST:]:
            found[_kind(step, self.periods)].append(step.seconds)
        return Measured(found, self.downloads, self.half_way)


def _kind(step: Step, periods: Sequence[Period]) -> str:
    """The most telling of all that happened in a step."""
    kinds = {period.kind for period in periods if period.overlaps(step)}
    return next((kind for kind in (KILLED, BOTH, AFTERWARDS, DOWNLOAD, RETURN, KNOCKING) if kind in kinds), QUIET)


def measure(size: int = SIZE, rounds: int = ROUNDS) -> Measured:
    setting = Setting.large(size, 100_000, strangers=2 * rounds, probation=_PROBATION)
    with tempfile.TemporaryDirectory() as temporary, peers_of(setting, Path(temporary)) as peers:
        story = _Story(peers, 8 * size)
        story.quiet(_FIRST)
        for number in range(rounds):
            story.quiet()
            story.download()
            story.quiet()
            story.download(kill=VICTIM)
            story.quiet()
            story.kill()
            print(
                f"round {number + 1} of {rounds}, {len(peers.steps)} steps:",
                *table(story.sorted()),
                sep="\n",
                flush=True,
            )
        story.quiet()
        return story.sorted()


def table(measured: Measured) -> list[str]:
    """For results-newcomers.md."""
    both = f"{measured.ratio(BOTH, KILLED):.2f}" if measured.steps[KILLED] and measured.steps[BOTH] else "–"
    listed = {kind: ", ".join(f"{one:.1f}" for one in measured.steps[kind]) for kind in (DOWNLOAD, KILLED, BOTH)}
    return [
        "| in a step of a founder | steps | median, s | from – to, s | median, in times of quiet |",
        "| --- | --- | --- | --- | --- |",
        *measured.rows(),
        "",
        f"- A killed founder with a download, in times of one without: {both}.",
        f"- Downloads took {', '.join(f'{one:.1f}' for one in measured.downloads)} s; founders were killed "
        f"{', '.join(f'{one:.1f}' for one in measured.half_way)} s after a step had begun.",
        *(f"- All steps, {kind}: {some} s." for kind, some in listed.items()),
    ]


if __name__ == "__main__":
    print("\n".join(table(measure(*map(int, sys.argv[1:])))))
