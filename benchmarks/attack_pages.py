"""What each attack did when it was tried: `make attack-pages` writes the table of docs/attacks/README.md.

16 peers of whom 7 lie learn to read digits, the attack starts in step 50. What attacks do to other defences is the lab's
matter: benchmarks/lab_pages.py.
"""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.progress import track

from benchmarks.marked import fill
from troth.workshop.attacks import ATTACKS
from troth.workshop.simulation import ALSO, Scenario, simulate

DOCS = Path(__file__).parent.parent / "docs/attacks"
SEEDS = (0, 1, 2)
LIARS, START = 7, 50
OF_THE_LAB = (  # measured by the lab alone
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
STUDIED = ("hide", "sandbagger")  # on their own pages; benchmarks/hidden_lies.py writes that of hide
OF_CODES = tuple(name for name, attack in ATTACKS.items() if attack.needs_code)  # the lab's recipe codes-attacked
TRIED = tuple(name for name in ATTACKS if name not in (*OF_THE_LAB, *STUDIED, *OF_CODES))


Job = tuple[str | None, int]  # an attack, or none, and a seed


@dataclass(frozen=True)
class Variant:
    """What is measured where the bare name of the attack is not."""

    attack: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the scenario, beside the attack
    metrics: tuple[str, ...] = ()  # shown beside the accuracy


VARIANTS = {
    "silent-validation": Variant("sign-flip" + " + silent-validation" * 6),  # else there would be nothing to keep quiet
    "nudge": Variant("nudge:size=0.03", {"machines": "cpu:peers=8,float64=true", "deviation": 0.01}),
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
    counted = Counter((variant.attack or name).split(ALSO))
    attacks = [f"--attack {spec}" + (f" × {count}" if count > 1 else "") for spec, count in counted.items()]
    names = {
        "tau_auto": "tau-auto",
        "machines": "machines",
        "deviation": "hardware-deviation",
        "attack_stop": "attack-stop",
    }
    options = [f"--{names[key]} {value}" for key, value in variant.options.items()]
    metrics = [f"--metric {metric}" for metric in variant.metrics]
    return " ".join([*attacks, *options, *metrics])


def row(name: str, runs: Sequence[Result], calm: Sequence[Result]) -> str:
    lasts = [str(max(run.liars_banned)) if run.liars_banned else "–" for run in runs]
    difference = mean(run.accuracy for run in runs) - mean(run.accuracy for run in calm)
    return (
        f"| [{name}]({name}.md) | {by_seed(len(run.liars_banned) for run in runs)} | {by_seed(lasts)} | "
        f"{by_seed(len(run.absent) for run in runs)} | {percent(runs)} | {100 * difference:+.1f} |"
    )


def by_seed(values: Iterable[object]) -> str:
    """The values of all seeds, or the one that they share."""
    found = [str(value) for value in values]
    return found[0] if len(set(found)) == 1 else ", ".join(found)


def percent(runs: Iterable[Result], metric: str = "accuracy") -> str:
    return by_seed(f"{100 * run.metrics[metric]:.1f}" for run in runs)


def notes(name: str, runs: Sequence[Result], calm: Sequence[Result]) -> str:
    """What an attack was tried with, beside its name, and what else was measured."""
    shown = [
        f" {metric}: {percent(runs, metric)} %, without attack {percent(calm, metric)} %."
        for metric in VARIANTS[name].metrics
    ]
    return f"- {name}: `{command(name)}`.{''.join(shown)}"


def machine() -> str:
    return f"{platform.machine()}, PyTorch {torch.__version__}"


def write_all(results: Mapping[Job, Result]) -> None:
    assert all(run.agreement and run.honest_banned == 0 for run in results.values()), "a promise was broken"
    calm = [results[None, seed] for seed in SEEDS]
    found = {name: [results[name, seed] for seed in SEEDS] for name in TRIED}
    fill(
        DOCS / "README.md",
        {
            "tried": f"""
`troth simulate --byzantine {LIARS} --attack NAME --seed …`, 400 steps of digits, the attack from step {START} on. Written by
`make attack-pages` on {machine()}: seeds {", ".join(map(str, SEEDS))}, or one number where they agree. In
all runs all honest peers held the same model after every step, and none of them was banned. Without attack the accuracy
is {percent(calm)} %.

| attack | liars banned, of {LIARS} | the last of them after … steps | absent | accuracy, % | points against no attack, mean |
| --- | --- | --- | --- | --- | --- |
{chr(10).join(row(name, runs, calm) for name, runs in found.items())}

Not with the bare name:

{chr(10).join(notes(name, found[name], calm) for name in VARIANTS)}
"""
        },
    )


def main() -> None:
    jobs: list[Job] = [(name, seed) for name in (None, *TRIED) for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        results = dict(zip(jobs, track(pool.map(result, jobs), total=len(jobs), description="runs"), strict=True))
    write_all(results)
    print((DOCS / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
