"""What one run does not show: `make attack-studies` writes the studies in docs/attacks/README.md.

How long liars last under different behaviour, and what attacks do to a radius that follows the distances.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing import get_context
from statistics import mean, stdev
from typing import TypeVar

import torch
from rich.progress import track

from benchmarks.attack_pages import DOCS, LIARS, START, machine
from benchmarks.ban_law import law
from benchmarks.marked import fill
from troth.protocol.core.records import decode_record
from troth.workshop.attacks import ATTACKS, AttackError
from troth.workshop.simulation import ProtocolSimulation, Scenario

J = TypeVar("J")
R = TypeVar("R")

RUNS = 100
TAU, TAU_AUTO = {"digits": 0.2, "quadratic:dimension=100": 0.05}, 0.5


def in_parallel(work: Callable[[J], R], jobs: Sequence[J], what: str) -> list[R]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(track(pool.map(work, jobs), total=len(jobs), description=what))


# How long they last


@dataclass(frozen=True)
class Conduct:
    name: str
    attack: str
    liars: int  # how many have to go
    predicted: float | None


ALL_GO = 1 / law(LIARS) + 1  # the first, and a step later those who lied beside it (SPEC R8)
WIRE_BEHAVIOURS = (
    Conduct("seven flip signs", "sign-flip", LIARS, ALL_GO),
    Conduct("seven flip signs and withhold coin B when it is bad for them", "grind", LIARS, None),
    Conduct("one flips signs, the others are honest", "sign-flip", 1, 1 / (15 / 16 / 15)),
    Conduct(
        "one flips signs, six never accuse anybody", "sign-flip" + " + silent-validation" * 6, 1, 1 / (9 / 16 / 15)
    ),
)


def steps_until_gone(job: tuple[Conduct, int]) -> int:
    """Steps from the first lie until those who lie about gradients are no longer members."""
    torch.set_num_threads(1)
    behaviour, seed = job
    byzantine = 1 if behaviour.name.endswith("others are honest") else LIARS
    simulation = ProtocolSimulation(
        Scenario(
            task="quadratic:dimension=32",
            byzantine=byzantine,
            attack=behaviour.attack,
            attack_start=5,
            steps=600,
            evaluate_every=600,
            seed=seed,
        )
    )
    for report in simulation.steps():
        gone = {ban.peer for ban in simulation.bans} | set(simulation.absent)
        assert gone <= set(simulation.byzantine), "an honest peer is gone"
        if len(gone) >= behaviour.liars:
            return report.step - 1 - 5
    raise AssertionError("the liars outlasted the run")


def how_long() -> str:
    rows = []
    for behaviour in WIRE_BEHAVIOURS:
        waits = in_parallel(steps_until_gone, [(behaviour, seed) for seed in range(RUNS)], behaviour.name)
        error = stdev(waits) / RUNS**0.5
        predicted = f"{behaviour.predicted:.1f}" if behaviour.predicted else "at most as long as without withholding"
        rows.append(f"| {behaviour.name} | {mean(waits):.1f} ± {error:.1f} | {predicted} |")
    return f"""
Steps from the first lie until all who lie about gradients are gone: {RUNS} runs each of 16 peers on a quadratic, one
validator. Written by `make attack-studies` on {machine()}.

| behaviour | measured | predicted |
| --- | --- | --- |
{chr(10).join(rows)}

Validators who say nothing delay a ban by the factor 15/9 ([the law](../ban-law.md)). Withholding coin B does not delay, it hastens: the next
step audits everyone.
"""


# A radius that follows the distances


def radii(job: tuple[str, str | None, int]) -> list[float]:
    """τ of every step from the first lie on."""
    torch.set_num_threads(1)
    task, attack, seed = job
    simulation = ProtocolSimulation(
        Scenario(
            task=task,
            byzantine=LIARS if attack else 0,
            attack=attack or "sign-flip",
            attack_start=START,
            tau=TAU[task],
            tau_auto=TAU_AUTO,
            steps=200,
            evaluate_every=1000,
            seed=seed,
        )
    )
    for _ in simulation.steps():
        pass
    return [decode_record(raw).tau for raw in simulation.trace][START:]


def fits(attack: str, task: str) -> bool:
    """Whether the attack is defined on the task: labels can be flipped only where there are some."""
    try:
        Scenario(task=task, byzantine=LIARS, attack=attack)
    except AttackError:
        return False
    return True


def follows_distances() -> str:
    seeds = (0, 1)
    names = [name for name, attack in ATTACKS.items() if not attack.needs_code]
    attacks: list[str | None] = [None, *names]
    tasks = {attack: [task for task in TAU if attack is None or fits(attack, task)] for attack in attacks}
    jobs = [(task, attack, seed) for attack in attacks for task in tasks[attack] for seed in seeds]
    found = dict(zip(jobs, in_parallel(radii, jobs, "radius"), strict=True))

    def peak(task: str, attack: str) -> float:
        return max(max(found[task, attack, seed]) / max(found[task, None, seed]) for seed in seeds)

    def step_by_step(task: str, attack: str) -> float:
        pairs = [(found[task, attack, seed], found[task, None, seed]) for seed in seeds]
        return max(a / b for attacked, calm in pairs for a, b in zip(attacked, calm, strict=True))

    ratios = {
        attack: tuple(ratio(task, attack) for task in tasks[attack] for ratio in (peak, step_by_step))
        for attack in names
    }
    calm = [tau for seed in seeds for tau in found["digits", None, seed]]
    return f"""
`--tau-auto {TAU_AUTO}`, started near where it settles; 16 peers, 7 liars from step {START} of 200 on, seeds {" and ".join(map(str, seeds))}. "Peak" is the largest τ
under attack over the largest without, "step by step" the largest ratio at one and the same step. On a quadratic the distances
of honest peers are always the same. On digits they shrink as the model learns (τ goes from {max(calm):.3f} down to {min(calm):.3f} without
attack), so a model that was set back, or stands still since too many peers left, is compared with one that is ahead: that is
where ratios above 2 come from. Written by `make attack-studies` on {machine()}.

{radius_table(ratios)}"""


def radius_table(ratios: Mapping[str, Sequence[float]]) -> str:
    """Attacks with a ratio that is worth a row, and the largest ratios of all others."""
    shown = {attack: found for attack, found in ratios.items() if found[0] >= 1.05 or max(found) >= 1.5}
    others = [found for attack, found in ratios.items() if attack not in shown]
    shown[f"the other {len(others)}, at most"] = [max(column) for column in zip_longest(*others, fillvalue=0.0)]
    rows = (f"| {name} | {' | '.join(f'{ratio:.2f}' for ratio in found)} |" for name, found in shown.items())
    return f"""| attack | digits, peak | digits, step by step | quadratic, peak | quadratic, step by step |
| --- | --- | --- | --- | --- |
{chr(10).join(rows)}
"""


def main() -> None:
    for name, study in (("how long", how_long), ("radius", follows_distances)):
        text = study()
        fill(DOCS / "README.md", {name: text})
        print(text)


if __name__ == "__main__":
    main()
