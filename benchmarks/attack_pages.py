"""One page per attack with what it did when it was tried: `make attack-pages` writes docs/attacks/.

The prose stands in the pages and stays; below "Measured" everything is written anew from runs: 16 peers of whom 7 lie learn
to read digits, the attack starts in step 50. What attacks do to other defences is the lab's matter: benchmarks/lab_pages.py.
`python -m benchmarks.attack_pages backdoor unwatched` tries these alone; the index, which compares all, stays as it is.
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.progress import track

from troth.attacks import ATTACKS
from troth.simulation import ALSO, Scenario, simulate

DOCS = Path(__file__).parent.parent / "docs/attacks"
SEEDS = (0, 1, 2)
LIARS, START = 7, 50
OF_THE_LAB = (  # the figures on their pages are those of the lab; the index has a table of them that is not measured
    "mimic",
    "min-max",
    "min-sum",
    "gaussian",
    "zero",
    "not-finite",
    "bit-flip",
    "rop",
    "tailored",
    "slow-poison",
)
STUDIED = ("hide",)  # by benchmarks/hidden_lies.py, which writes its page
TRIED = tuple(name for name in ATTACKS if name not in (*OF_THE_LAB, *STUDIED))


Job = tuple[str | None, int]  # an attack, or none, and a seed


@dataclass(frozen=True)
class Variant:
    """What is measured where the bare name of the attack is not."""

    attack: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the scenario, beside the attack
    metrics: tuple[str, ...] = ()  # shown beside the accuracy


VARIANTS = {
    "silent-validation": Variant("sign-flip" + " + silent-validation" * 6),  # else there would be nothing to keep quiet
    "nudge": Variant("nudge:size=0.03", {"hardware": 3, "deviation": 0.01}),
    "inflate": Variant(options={"tau_auto": 0.25}),
    "covered-once": Variant(options={"attack_stop": START + 1}),  # once
    "backdoor": Variant(metrics=("backdoor",)),  # the accuracy shows nothing of it
}
METRICS = tuple(name for variant in VARIANTS.values() for name in variant.metrics)


def scenario(name: str | None, seed: int) -> Scenario:
    if name is None:
        return Scenario(seed=seed, evaluate_every=1000, metrics=METRICS)
    variant = VARIANTS.get(name, Variant())
    attack = variant.attack or name
    return Scenario(
        byzantine=LIARS,
        attack=attack,
        attack_start=START,
        seed=seed,
        evaluate_every=1000,
        metrics=variant.metrics,
        **variant.options,
    )


@dataclass(frozen=True)
class Result:
    """What one run showed."""

    metrics: dict[str, float]
    liars_banned: list[int]  # steps, after the attack began
    honest_banned: int
    absent: list[int]
    agreement: bool

    @property
    def accuracy(self) -> float:
        return self.metrics["accuracy"]


def result(job: Job) -> Result:
    torch.set_num_threads(1)
    summary = simulate(scenario(*job)).summary
    details = summary.details
    banned = [ban["step"] - START for ban in details["banned"] if ban["peer"] in summary.byzantine]
    return Result(
        summary.metrics,
        banned,
        details["honest_banned"],
        details["absent"],
        details["agreement"],
    )


def command(name: str) -> str:
    variant = VARIANTS.get(name, Variant())
    attacks = [f"--attack {spec}" for spec in (variant.attack or name).split(ALSO)]
    names = {
        "tau_auto": "tau-auto",
        "hardware": "hardware",
        "deviation": "hardware-deviation",
        "attack_stop": "attack-stop",
    }
    options = [f"--{names[key]} {value:g}" for key, value in variant.options.items()]
    metrics = [f"--metric {metric}" for metric in variant.metrics]
    return " ".join(["troth simulate --byzantine", str(LIARS), *attacks, *options, *metrics])


def write_page(name: str, runs: Sequence[Result], calm: Sequence[Result]) -> str:
    """Write the page's figures; return its row in the overview."""
    shown = ("accuracy", *VARIANTS.get(name, Variant()).metrics)
    rows = []
    for seed, run, without in zip(SEEDS, runs, calm, strict=True):
        last = f"{max(run.liars_banned)} steps" if run.liars_banned else "–"
        figures = [f" {run.metrics[metric]:.1%} | {without.metrics[metric]:.1%} |" for metric in shown]
        rows.append(
            f"| {seed} | {len(run.liars_banned)} of {LIARS} | {last} | {len(run.absent)} | {run.honest_banned} |"
            + "".join(figures)
        )
    rewrite(
        DOCS / f"{name}.md",
        "## Measured",
        f"""
`{command(name)} --seed …`, 400 steps of digits, the attack from step {START} on.
Written by `make attack-pages` on {machine()}.

| seed | liars banned | the last of them after | absent | honest banned |{"".join(f" {name} | without attack |" for name in shown)}
| --- | --- | --- | --- | --- |{" --- | --- |" * len(shown)}
{chr(10).join(rows)}
""",
    )
    difference = mean(run.accuracy for run in runs) - mean(run.accuracy for run in calm)
    lasts = [max(run.liars_banned) for run in runs if run.liars_banned]
    return (
        f"| [{name}]({name}.md) | {mean(len(run.liars_banned) for run in runs):.1f} | "
        f"{f'{mean(lasts):.0f}' if lasts else '–'} | {mean(len(run.absent) for run in runs):.1f} | "
        f"{100 * difference:+.1f} points |"
    )


def machine() -> str:
    return f"{platform.machine()}, PyTorch {torch.__version__}"


def rewrite(path: Path, heading: str, text: str) -> None:
    """Replace what stands below a heading, up to the next of its kind; the rest of the page stays."""
    before, found, after = path.read_text(encoding="utf-8").partition(f"{heading}\n")
    assert found, f"{path} has no heading '{heading}'"
    _, following, rest = after.partition("\n## ")
    path.write_text(before + found + text + following + rest, encoding="utf-8")


def write_all(results: Mapping[Job, Result], names: Sequence[str] = TRIED) -> None:
    """Write the figures of these pages; of all of them, also those of the index."""
    assert all(run.agreement and run.honest_banned == 0 for run in results.values()), "a promise was broken"
    calm = [results[None, seed] for seed in SEEDS]
    rows = [write_page(name, [results[name, seed] for seed in SEEDS], calm) for name in names]
    if names != TRIED:
        return
    rewrite(
        DOCS / "README.md",
        "## What each of them did",
        f"""
Mean of seeds {", ".join(map(str, SEEDS))}; written by `make attack-pages` on {machine()}. In all runs all honest peers held the
same model after every step, and none of them was banned. Without attack the accuracy is {mean(r.accuracy for r in calm):.1%}.

| attack | liars banned, of {LIARS} | all of these after … steps | absent | accuracy against no attack |
| --- | --- | --- | --- | --- |
{chr(10).join(rows)}
""",
    )


def main(names: Sequence[str]) -> None:
    assert set(names) <= set(TRIED), f"there are {', '.join(TRIED)}"
    jobs: list[Job] = [(name, seed) for name in (None, *names) for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        results = dict(zip(jobs, track(pool.map(result, jobs), total=len(jobs), description="runs"), strict=True))
    write_all(results, names)
    print((DOCS / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or TRIED)
