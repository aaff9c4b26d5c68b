"""Seats that an attacker with many names gets, with and without the door: `make bench-door` writes benchmarks/results-door.md and
docs/images/door.png.

`door_world` plays the runs, by the protocol's own rules. The table shows what strategies come to, and the one that is best for the
attacker in full.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

import numpy as np
from rich.progress import Progress

from benchmarks.door_world import FETCH, FOUNDERS, HASHES, STEPS, Course, Scene, World, without_door
from troth.crypto import Digest, Identity, derive
from troth.protocol.core.door import Door
from troth.protocol.recovery.requests import Tickets
from troth.workshop.simulation.stranger_specs import STRATEGIES

ROOT = Path(__file__).parent.parent
RESULTS, PICTURE = ROOT / "benchmarks/results-door.md", ROOT / "docs/images/door.png"
SHARES, NAMES, SEEDS = (0.1, 0.2, 0.3, 0.4), 1000, range(2)
# How the attacker comes: what its machine hashes for one of a laptop, and whether honest strangers reach the door.
WAYS: dict[str, tuple[float, bool]] = {
    "as many": (1.0, False),
    "a thousand times as many": (1000.0, False),
    "as many; honest strangers are kept away": (1.0, True),
}
GOAL = 1.15  # most seats for the share of the compute, as a multiple
FAR = 0.5  # of the best strategy's seats: one that has less with the first seed is not played with the others
SHOWN = ("works", "turns", "stretches")  # strategies with a column of their own


@dataclass(frozen=True)
class Outcome:
    """Runs of one scene that differ in their seed alone, with the attacker's best strategy."""

    courses: list[Course]
    tried: dict[str, float] = field(default_factory=dict)  # share of the seats at the end, by strategy

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
        return self.end_share > GOAL * self.scene.compute

    @property
    def row(self) -> str:
        scene, courses = self.scene, self.courses
        seats, members = (mean(found) for found in zip(*((c.seats[-1], c.members[-1]) for c in courses), strict=True))
        end = f"**{self.end_share:.0%}**" if self.missed else f"{self.end_share:.0%}"
        lost = [course.lost for course in courses if course.lost is not None]
        wait = float(np.median([course.wait for course in courses]))
        cells = [
            f"{scene.compute:.0%}",
            way_of(scene),
            *(f"{self.tried[how]:.0%}" if how in self.tried else "–" for how in SHOWN),
            end,
            f"{seats:.0f} of {members:.0f}",
            f"{max(course.shares.max() for course in courses):.0%}",
            f"{mean(course.banned for course in courses):.0f}",
            f"{wait:.0f}" if np.isfinite(wait) else "half never did",
            f"from step {min(lost)} on" if lost else "–",
        ]
        return f"| {' | '.join(cells)} |"


def way_of(scene: Scene) -> str:
    """How the attacker of this scene comes, in words."""
    how = next(words for words, way in WAYS.items() if way == (scene.edge, scene.kept_away))
    names = "" if scene.names == NAMES else f"; {scene.names:,} names"
    speed = "" if scene.speed == 1.0 else f"; {scene.share:.0%} of the machines, {scene.speed:g} times as fast"
    return how + names + speed


HEAD = """| share of the compute | hashes of its machine | seats, if it works | turns | stretches | at its best | seats then | at its highest | bans | an honest laptop joins after (steps) | more liars than the run withstands |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def table(outcomes: Iterable[Outcome]) -> str:
    return "\n".join([HEAD, *(outcome.row for outcome in outcomes)])


def best(scene: Scene) -> Outcome:
    """The strategy with the greatest share of the seats over the last quarter."""
    first, *more = SEEDS
    tried = {how: Outcome([World(replace(scene, strategy=how, seed=first)).play()]) for how in STRATEGIES}
    most = max(outcome.late_share for outcome in tried.values())
    left = [outcome for outcome in tried.values() if outcome.late_share >= FAR * most]
    for outcome in left:
        outcome.courses.extend(World(replace(outcome.scene, seed=seed)).play() for seed in more)
    found = max(left, key=lambda outcome: outcome.late_share)
    return Outcome(found.courses, {how: outcome.end_share for how, outcome in tried.items()})


def scenes() -> dict[str, list[Scene]]:
    """What is played, by the table that it belongs to."""
    ways = [Scene(share, NAMES, edge=edge, kept_away=away) for share in SHARES for edge, away in WAYS.values()]
    many = [Scene(share, NAMES, edge=1.0) for share in SHARES[2:]]
    return {
        "alone": [Scene(0.0, 0, edge=1.0), Scene(0.0, 0, probation=32, edge=1.0)],
        "ways": ways,
        "names": [replace(scene, names=names) for scene in many for names in (10, 100)],
        "speed": [Scene(share, NAMES, edge=1.0, speed=speed) for share, speed in ((0.05, 10), (0.1, 4), (0.1, 10))],
        "slots": [replace(scene, slots=slots) for slots in (4, 8) for scene in many],
        "short": [replace(scene, probation=probation) for probation in (32, 64) for scene in many],
        "audited": [replace(scene, probation=32, validators=4) for scene in many],
    }


def play_all() -> dict[str, list[Outcome]]:
    """All of them, on every core there is."""
    plan = scenes()
    everything = [scene for group in plan.values() for scene in group]
    with Progress() as progress, ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        bar = progress.add_task("scenes", total=len(everything))
        played = []
        for outcome in pool.map(best, everything):
            played.append(outcome)
            progress.advance(bar)
    found = iter(played)
    return {name: [next(found) for _ in group] for name, group in plan.items()}


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
    found = [f"{one.scene.compute:.0%}, {way_of(one.scene)} ({one.end_share:.0%})" for one in outcomes if one.missed]
    return f"missed at {'; '.join(found)}" if found else "met everywhere"


def results(found: dict[str, list[Outcome]], seconds: float) -> str:
    alone, short = (float(np.median([course.wait for course in one.courses])) for one in found["alone"])
    arrived = Scene(0.1, 1).arrived(STEPS - 1)
    return f"""# Many names at the door

Written by `make bench-door` ({seconds:.0f} s): {STEPS:,} steps of {FOUNDERS} honest founders, to whose door an honest stranger comes every 64 steps,
{arrived} in all, and an attacker who has, at any time, the given share of all machines that are there, under {NAMES:,} names.
Means of {len(SEEDS)} runs (columns of strategies far behind: of one); the highest share is that of any run. T = 128, one validator, sixteen slots, 16 bits, unless said otherwise.

A machine works one gradient in a step. Roles, audits, lotteries, probation, admissions and bans are the protocol's own code; gradients are
worked or faked, and a fake that an honest member audits is a ban. An honest stranger fetches the state in {FETCH} steps, never misses a step, and
never leaves; a machine makes {HASHES:,} hashes in a step, and smallest hashes are drawn from their distribution. The attacker
**works** (begins only what it can work for, and leaves its other slots empty, which keeps others out), **turns** (works on probation first, then for as
many seats as it can, and fakes the others), or **stretches** (begins an eighth more than it can work for, and lets candidates miss steps in turn); to fake all of it never was best.
Bold: the goal is missed, since the share of the seats at the end is above {GOAL} times that of the compute. "More liars than the run withstands": more than L (SPEC G1) seats are the attacker's; where they are half, nobody can ban them any more.

Nobody attacks: an honest laptop is a member {alone:.0f} steps after it came (T = 32: {short:.0f}).

## Who comes, and how

The goal is {missed(found["ways"])}.

{table(found["ways"])}

An attacker that hashes as laptops do has its share. One that hashes a thousand times as fast, or keeps honest strangers from the members on the network, has as many seats as machines; honest machines outside have none, and its share is
that among those who are in: no rule of the door can count machines that it does not hear of. Graphics cards are known for 10⁹ SHA-256 hashes in a second and more (not measured here); the search in `troth join`
makes {hashes_per_second():,.0f} on one core of this machine.

## Fewer names

The goal is {missed(found["names"])}.

{table(found["names"])}

## Machines that are faster than the run's pace

What counts is gradients in a step. A machine that makes r of them has r seats, if its owner likes; an honest one has one, and idles. The goal is, in gradients, {missed(found["speed"])}; in machines it is missed r-fold.

{table(found["speed"])}

## Fewer slots

Four slots, then eight; sixteen are above. Where slots are few, whoever wins most of them works in most of them. The goal is {missed(found["slots"])}.

{table(found["slots"])}

## Shorter probation

T = 32 with four slots, then T = 64 with eight, as `troth new` has them. A seat that is faked lasts n/m steps and costs T gradients; but those who fake in the same step fall together ([decision 29](../docs/decisions/0029-where-one-is-caught.md)).
The goal is {missed(found["short"])}.

{table(found["short"])}

## T = 32, four validators

A quarter of the founders audit instead of contributing, and the run withstands 5 of 16 (31%), so 40% are too many however they come in.
The goal is {missed(found["audited"])}.

{table(found["audited"])}
"""


def draw(found: Sequence[Outcome]) -> None:
    """One panel for each share of the compute: seats over time, for each way to come, and without the door."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    panels = figure.subplots(1, len(SHARES), sharey=True)
    for axes, share in zip(panels, SHARES, strict=True):
        mine = [outcome for outcome in found if outcome.scene.share == share]
        for outcome, colour in zip(mine, ("#2e8b57", "#1b6ca8", "#8e44ad"), strict=True):
            shares_RS = np.array([course.shares for course in outcome.courses])
            axes.plot(shares_RS.mean(axis=0), color=colour, linewidth=2, label=f"hashes: {way_of(outcome.scene)}")
        axes.plot(without_door(mine[0].scene).shares, color="black", linewidth=1, linestyle=":")
        axes.axhline(share, color="#c0392b", linestyle="--", linewidth=1)
        axes.set_title(f"{share:.0%} of the compute", fontsize=11)
        axes.set_xlabel("step")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("the attacker's seats")
    lines, labels = panels[0].get_legend_handles_labels()
    lines += [axes.plot([], [], color="black", linewidth=1, linestyle=":")[0]]
    lines += [axes.plot([], [], color="#c0392b", linestyle="--", linewidth=1)[0]]
    labels += ["without the door", "share of the compute"]
    figure.legend(lines, labels, frameon=False, ncols=5, loc="outside lower center")
    figure.savefig(PICTURE, dpi=100, metadata={"Software": None})


def main() -> None:
    began = time.perf_counter()
    found = play_all()
    RESULTS.write_text(results(found, time.perf_counter() - began), encoding="utf-8")
    draw(found["ways"])
    print(RESULTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
