"""Seats that an attacker with many names gets, with and without the door: `make bench-door` writes benchmarks/results-door.md,
docs/images/door.png, and the table in docs/door.md.

`door_world` plays the runs, by the protocol's own rules. Of four strategies the table shows the one that is best for the attacker.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
from rich.progress import Progress

from benchmarks.door_world import FETCH, FOUNDERS, HASHES, STEPS, Course, Scene, World, without_door
from troth.crypto import Digest, Identity, derive
from troth.protocol.core.door import Door
from troth.protocol.recovery.knocking import Tickets
from troth.simulation.lockstep.door.strategies import STRATEGIES

ROOT = Path(__file__).parent.parent
PAGE, RESULTS, PICTURE = ROOT / "docs/door.md", ROOT / "benchmarks/results-door.md", ROOT / "docs/images/door.png"
SHARES, NAMES, SEEDS = (0.1, 0.2, 0.4), (10, 100, 1000), range(2)
ABOUT = 1.1  # times the share of the compute that still is about that share
FAR = 0.5  # of the best strategy's seats: one that has less with the first seed is not played with the others
BEGIN, END = "<!-- written by make bench-door -->\n", "<!-- end -->"


@dataclass(frozen=True)
class Outcome:
    """Runs of one scene that differ in their seed alone, with the attacker's best strategy."""

    courses: list[Course]

    @property
    def scene(self) -> Scene:
        return self.courses[0].scene

    @property
    def late_share(self) -> float:
        """Share of the seats over the last quarter: what strategies are compared by."""
        return mean(float(course.shares[-course.scene.steps // 4 :].mean()) for course in self.courses)

    @property
    def end_share(self) -> float:
        return mean(float(course.shares[-1]) for course in self.courses)

    @property
    def missed(self) -> bool:
        return self.end_share > ABOUT * self.scene.share

    @property
    def row(self) -> str:
        scene, courses = self.scene, self.courses
        seats, members = (mean(found) for found in zip(*((c.seats[-1], c.members[-1]) for c in courses), strict=True))
        end = f"**{self.end_share:.0%}**" if self.missed else f"{self.end_share:.0%}"
        lost = [course.lost for course in courses if course.lost is not None]
        wait = float(np.median([course.wait for course in courses]))
        cells = [
            f"{scene.share:.0%}",
            f"{scene.names:,}",
            f"{without_door(scene).shares[-1]:.0%}",
            f"{seats:.0f} of {members:.0f}",
            end,
            f"{max(course.shares.max() for course in courses):.0%}",
            scene.strategy if max(map(max, (course.seats for course in courses))) else "–",
            f"{mean(course.banned for course in courses):.0f}",
            f"{wait:.0f}" if np.isfinite(wait) else "half never did",
            f"from step {min(lost)} on" if lost else "–",
        ]
        return f"| {' | '.join(cells)} |"


HEAD = """| share of the compute | names | share of the seats without the door | seats with it | share at the end | at its highest | strategy | bans | an honest laptop joins after (steps) | more liars than the run withstands |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def table(outcomes: Iterable[Outcome]) -> str:
    return "\n".join([HEAD, *(outcome.row for outcome in outcomes)])


def best(scene: Scene, played: Callable[[], None]) -> Outcome:
    """The strategy with the greatest share of the seats over the last quarter."""
    first, *more = SEEDS
    tried = {}
    for strategy in STRATEGIES:
        tried[strategy] = Outcome([World(replace(scene, strategy=strategy, seed=first)).play()])
        played()
    most = max(outcome.late_share for outcome in tried.values())
    left = [outcome for outcome in tried.values() if outcome.late_share >= FAR * most]
    for outcome in left:
        outcome.courses.extend(World(replace(outcome.scene, seed=seed)).play() for seed in more)
    return max(left, key=lambda outcome: outcome.late_share)


def scenes() -> dict[str, list[Scene]]:
    """What is played, by the table that it belongs to."""
    grid = [Scene(share, names) for share in SHARES for names in NAMES]
    many = [Scene(share, NAMES[-1], edge=1.0) for share in SHARES]
    return {
        "alone": [Scene(0.0, 0), Scene(0.0, 0, probation=32)],
        "machines": [replace(scene, edge=1.0) for scene in grid],
        "share": grid,
        "hashes": [replace(scene, edge=1000.0) for scene in many],
        "short": [replace(scene, probation=32) for scene in many],
        "audited": [replace(scene, probation=32, validators=4) for scene in many],
        "slots": [replace(scene, slots=8) for scene in many],
    }


def play_all() -> dict[str, list[Outcome]]:
    plan = scenes()
    with Progress() as progress:
        bar = progress.add_task("runs", total=sum(len(STRATEGIES) * len(group) for group in plan.values()))
        return {name: [best(scene, lambda: progress.advance(bar)) for scene in group] for name, group in plan.items()}


def hashes_per_second() -> float:
    """Of the search that `troth join` makes, on one core of this machine."""
    door, tickets = (
        Door(128, 4, 16, Digest(derive(0, "seed"))),
        Tickets(Digest(derive(0, "run")), Identity.from_secret(derive(0, "key")), ""),
    )
    began = time.perf_counter()
    tickets.search(door, 1 << 14)
    return (1 << 14) / (time.perf_counter() - began)


def missed(outcomes: Sequence[Outcome]) -> str:
    """Where the goal is missed, in words."""
    found = [
        f"{one.scene.share:.0%} with {one.scene.names:,} names ({one.end_share:.0%})" for one in outcomes if one.missed
    ]
    return f"missed at {', '.join(found)}" if found else "met everywhere"


def inside(outcomes: Sequence[Outcome]) -> str:
    """Shares of the attacker's seats, had every honest stranger become a member."""
    honest = FOUNDERS + Scene(0.1, 1).arrived(STEPS - 1)
    seats = [mean(course.seats[-1] for course in one.courses) for one in outcomes]
    return ", ".join(f"{count / (count + honest):.0%}" for count in seats)


def results(found: dict[str, list[Outcome]], seconds: float) -> str:
    alone, short = (float(np.median([course.wait for course in one.courses])) for one in found["alone"])
    arrived = Scene(0.1, 1).arrived(STEPS - 1)
    return f"""# Many names at the door

Written by `make bench-door` ({seconds:.0f} s on one core): {STEPS:,} steps of {FOUNDERS} honest founders, to whose door an honest stranger comes every 64 steps,
{arrived} in all, and an attacker who has, at any time, the given share of all machines that are there, under the given number of names.
Means of {len(SEEDS)} runs; the highest share is that of any run. T = 128, one validator, four slots, 16 bits, unless said otherwise.

A machine works one gradient in a step. Roles, audits, lotteries, probation, admissions and bans are the protocol's own code; gradients are
worked or faked, and a fake that an honest member audits is a ban. An honest stranger fetches the state in {FETCH} steps, never misses a step, and
never leaves; a machine makes {HASHES:,} hashes in a step, and smallest hashes are drawn from their distribution. The attacker's best strategy is shown, of
**works** (begins only what it can work for, and leaves its other slots empty, which keeps others out), **turns** (works on probation first, then for as
many seats as it can, and fakes the others), **stretches** (begins an eighth more than it can work for, and lets candidates miss steps in turn), and **fakes** (all). "Without the door" every name that asks has a seat at once. Bold: the goal is missed, since the share of the seats at the end is above
{ABOUT} times that of the compute. "More liars than the run withstands": more than L (SPEC G1) seats are the attacker's; where they are half, nobody can ban them any more.

Nobody attacks: an honest laptop is a member {alone:.0f} steps after it came (T = 32: {short:.0f}).

## The attacker hashes with its machines, against strangers that wait

Members and candidates do not hash, so an attacker with α of all machines has more than α of the hash rate at the door. The goal is {missed(found["machines"])}.

{table(found["machines"])}

Why it is missed: honest machines that wait outside are missing among the seats. Were all of them members, the attacker's seats at the end would be {inside(found["machines"])} of all, in the
order of the rows. At 10% and 20% it wins more slots than it has machines, and leaves them empty. At 40% it works in nearly every slot
it wins, but wins most of them, since few strangers wait at a time and only they hash against it.

The last column: at 40% the attacker is near what {FOUNDERS} founders with one validator withstand at all (7 of them, 44%).

## The attacker has α of the hash rate at the door

The goal is {missed(found["share"])}.

{table(found["share"])}

## The attacker hashes a thousand times as fast

Graphics cards are known for 10⁹ SHA-256 hashes in a second and more (not measured here); the search in `troth join` makes {hashes_per_second():,.0f} on one core of this machine.
Then every slot is the attacker's; those that it cannot work for stay empty for T steps each, and honest strangers stay outside. The goal is {missed(found["hashes"])}.

{table(found["hashes"])}

## T = 32, one validator

A seat that is faked lasts n/m steps and costs T gradients: where T is below that, working through probation and faking afterwards paid, until those who fake in the same step fell together ([decision 29](../docs/decisions/0029-where-one-is-caught.md); before, 40% of the compute had 77% of the seats here). The goal is {missed(found["short"])}.

{table(found["short"])}

## T = 32, four validators

The same ratio T = 8n/m as T = 128 with one; a quarter of the founders audit instead of contributing, and the run withstands 5 of 16 (31%), so 40% are too many however they come in.
The goal is {missed(found["audited"])}.

{table(found["audited"])}

## Eight slots, T = 128

The goal is {missed(found["slots"])}.

{table(found["slots"])}
"""


def draw(found: Sequence[Outcome]) -> None:
    """One panel for each share of the compute: seats over time, for each number of names, with the door and without it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    panels = figure.subplots(1, len(SHARES), sharey=True)
    for axes, share in zip(panels, SHARES, strict=True):
        mine = [outcome for outcome in found if outcome.scene.share == share]
        for outcome, colour in zip(mine, ("#2e8b57", "#1b6ca8", "#8e44ad"), strict=True):
            names = f"{outcome.scene.names:,} names"
            shares_RS = np.array([course.shares for course in outcome.courses])
            axes.plot(shares_RS.mean(axis=0), color=colour, linewidth=2, label=names)
            axes.plot(without_door(outcome.scene).shares, color=colour, linewidth=1, linestyle=":")
        axes.axhline(share, color="#c0392b", linestyle="--", linewidth=1)
        axes.set_title(f"{share:.0%} of the compute", fontsize=11)
        axes.set_xlabel("step")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("the attacker's seats")
    panels[0].plot([], [], color="black", linewidth=1, linestyle=":", label="without the door")
    panels[0].plot([], [], color="#c0392b", linewidth=1, linestyle="--", label="share of the compute")
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, ncols=5, loc="outside lower center")
    figure.savefig(PICTURE, dpi=100, metadata={"Software": None})


def put_into_page(written: str) -> None:
    """Replace what stands between the marks."""
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert pattern.search(text), f"{PAGE} has no marks"
    PAGE.write_text(pattern.sub(lambda _: BEGIN + written + END, text), encoding="utf-8")


def main() -> None:
    began = time.process_time()
    found = play_all()
    RESULTS.write_text(results(found, time.process_time() - began), encoding="utf-8")
    put_into_page(table(found["machines"]) + "\n")
    draw(found["machines"])
    print(RESULTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
