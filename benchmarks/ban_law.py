"""How long liars last, against the law: `make ban-law` writes docs/ban-law.md and its picture.

With k liars among n = h + k members and m validators, a step bans the expected number of liars that honest validators audit:
each of the m validators is honest with probability h/n and its target is one of the k liars with probability k/(n − m). With
the first of them fall all that lied beside it, a step later (SPEC R8). The simulation knows nothing of this: bans come from
audits and votes.
"""

from collections.abc import Sequence
from math import ceil, log
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.marked import fill, table
from troth.workshop.simulation import ProtocolSimulation, Scenario

RUNS, PEERS, LIARS, START = 100, 16, 7, 5
BEHAVIOURS = {
    "sign-flip": "all lie in every step",
    "wary": "all lie, but behave in steps in which one of them is being found",
}
DOCS = Path(__file__).parent.parent / "docs"


def ban_steps(seed: int, attack: str) -> list[int]:
    """Steps from the first lie to each ban in one run; gradients are cheap, so that many runs fit."""
    scenario = Scenario(
        task="quadratic:dimension=32",
        peers=PEERS,
        byzantine=LIARS,
        attack=attack,
        attack_start=START,
        steps=400,
        seed=seed,
        evaluate_every=400,
    )
    simulation = ProtocolSimulation(scenario)
    for _ in simulation.steps():
        if len(simulation.bans) == LIARS:
            break
    assert {ban.peer for ban in simulation.bans} == set(simulation.byzantine), (
        "an honest peer was banned, or a liar stays"
    )
    return [ban.step - START for ban in simulation.bans]  # a lie can be audited in the next step


def law(left: int) -> float:
    """Probability that a step finds one of so many liars."""
    honest = PEERS - LIARS
    members = honest + left
    return honest / members * left / (members - 1)


def lawful(share: float) -> int:
    """Steps within which all are gone in this share of the runs: the wait for the first ban, and one more."""
    return ceil(log(1 - share) / log(1 - law(LIARS))) + 1


def one_by_one(count: int) -> NDArray[np.int64]:
    """Total times if every liar had to be found by itself, as in the paper: sums of geometric waits."""
    generator = np.random.default_rng(0)
    return sum(generator.geometric(law(left), count) for left in range(1, LIARS + 1))  # type: ignore[return-value]


def by_coin(count: int) -> NDArray[np.int64]:
    """Total times in the paper's simulation: every liar has the same small chance in every step, however many are left."""
    generator, chance = np.random.default_rng(0), (PEERS - LIARS) / PEERS / PEERS
    return sum(generator.geometric(chance * left, count) for left in range(1, LIARS + 1))  # type: ignore[return-value]


def main() -> None:
    found = {
        attack: [ban_steps(seed, attack) for seed in track(range(RUNS), description=attack)] for attack in BEHAVIOURS
    }
    first, alone, coin = 1 / law(LIARS), one_by_one(100_000), by_coin(100_000)
    rows: list[tuple[object, ...]] = [
        (words, _means(found[attack], 0), _means(found[attack], -1), _within(found[attack]))
        for attack, words in BEHAVIOURS.items()
    ]
    chance = "*the paper's simulation: a fixed chance of 9/256 for each liar*"
    rows += [
        ("*law*", f"{first:.1f}", f"{first + 1:.1f}", lawful(0.95)),
        ("*one by one, as in the paper's protocol*", f"{first:.1f}", f"{alone.mean():.0f}", _p95(alone)),
        (chance, "", f"{coin.mean():.0f}", _p95(coin)),
    ]
    _picture([run[-1] for run in found["sign-flip"]], alone)
    titles = ("steps from the first lie on", "to the first ban", "to the last", "95 % of runs within")
    fill(DOCS / "ban-law.md", {"steps": table(titles, rows)})


def _means(runs: Sequence[Sequence[int]], which: int) -> str:
    return f"{mean(run[which] for run in runs):.1f}"


def _within(runs: Sequence[Sequence[int]]) -> str:
    return _p95(np.array([run[-1] for run in runs]))


def _p95(totals: NDArray[np.int64]) -> str:
    return f"{np.percentile(totals, 95):.0f}"


def _picture(totals: list[int], alone: NDArray[np.int64]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    bins = list(range(0, 91, 3))
    axes.hist(totals, bins=bins, density=True, color="#1b6ca8", alpha=0.6, label=f"measured, {len(totals)} runs")
    heights, edges = np.histogram(alone, bins=30, range=(0, 90), density=True)
    middles = (edges[:-1] + edges[1:]) / 2
    axes.plot(middles, heights, color="#c0392b", linewidth=2, label="one by one, by the law")
    axes.set_xlabel("steps from the first lie until all seven liars are banned")
    axes.set_ylabel("density")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(DOCS / "images/ban-law.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
