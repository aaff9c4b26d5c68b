"""What codes give to liars: `python -m benchmarks.code_lies` writes figures into docs/attacks/bend.md and spike.md.

Backdoors by rounding, with all checks and without some of them; and how coarse aggregates get when liars aim at the largest number
of every block. A quarter of an hour on two idle cores.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import mean, median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.attack_pages import DOCS, LIARS, SEEDS, by_seed, machine
from benchmarks.marked import fill, table
from tests.workshop.attacks.unguarded import look_at_nothing
from troth.clip.blocks import INT16, Code
from troth.clip.exact import exact_norm
from troth.protocol.step import step
from troth.workshop.simulation import ProtocolSimulation, Scenario, simulate

CODE = Code.known["int8"]
START = 20  # first step of the spikes
ROUNDED = 0.58  # of the worst: root mean square of what rounding does

Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """One row of the table of backdoors."""

    title: str
    attack: str | None = None
    leaves: bool = True  # whether anybody looks at them (SPEC V4)

    def figures(self, seed: int) -> Figures:
        lies: dict[str, Any] = {} if self.attack is None else {"byzantine": LIARS, "attack": self.attack}
        with ExitStack() as without:
            if not self.leaves:
                without.enter_context(mock.patch.object(step, "look_at_leaves", look_at_nothing))
            summary = simulate(
                Scenario(
                    code="int8",
                    seed=seed,
                    attack_start=0,
                    metrics=("backdoor",),
                    evaluate_every=1000,
                    **lies,
                )
            ).summary
        assert summary.details["agreement"]
        assert not summary.details["honest_banned"]
        return {**summary.metrics, "gone": len(summary.details["banned"]) + len(summary.details["absent"])}


CASES = (
    Case("nobody lies"),
    Case("`bend:each=true`: passes V2, V4 and T6", "bend:each=true"),
    Case("`bend`, if nobody looked at leaves (V4)", "bend", leaves=False),
)


def steps_of_codes(seed: int) -> Figures:
    """How many times larger steps of codes get when liars spike, and what rounding moves, as a share of the honest aggregate."""
    calm_D, spiked_D = (
        _aggregate(Scenario(**_spiking(seed))),
        _aggregate(Scenario(**_spiking(seed), byzantine=LIARS, attack="spike")),
    )
    larger_B = INT16.quanta_of_blocks(spiked_D) / INT16.quanta_of_blocks(calm_D)
    return {
        "median": median(larger_B.tolist()),
        "most": float(larger_B.max()),
        "calm": ROUNDED * CODE.rounding(calm_D) / exact_norm(calm_D),
        "spiked": ROUNDED * CODE.rounding(spiked_D) / exact_norm(calm_D),
    }


def _spiking(seed: int) -> dict[str, Any]:
    return {"code": "int8", "seed": seed, "steps": START + 1, "attack_start": START, "evaluate_every": 1000}


def _aggregate(scenario: Scenario) -> Tensor:
    """That of the last step but the closing one."""
    simulation = ProtocolSimulation(scenario)
    for _ in simulation.steps():
        pass
    return simulation.states[simulation.honest[0]].audit_records[START].aggregate_D


Job = tuple[Case | None, int]


def figures(job: Job) -> Figures:
    torch.set_num_threads(1)
    case, seed = job
    return steps_of_codes(seed) if case is None else case.figures(seed)


def write(found: Mapping[Job, Figures]) -> None:
    rows = []
    for case in CASES:
        runs = [found[case, seed] for seed in SEEDS]
        rows.append(
            (
                case.title,
                by_seed(f"{100 * run['backdoor']:.1f}" for run in runs),
                by_seed(f"{100 * run['accuracy']:.1f}" for run in runs),
                "–" if case.attack is None else by_seed(int(run["gone"]) for run in runs),
            )
        )
    bends = f"""
16 peers, {LIARS} of them bend from step 0 of 400 on, `--code int8`, digits, AdamW; seeds 0, 1, 2, or one number where they agree.
Trigger: share of test images of other classes that are taken for the target once they bear it. The runs of
`python -m benchmarks.code_lies` on {machine()}.

{table(("who", "trigger, %", "accuracy, %", f"liars gone, of {LIARS}"), rows)}"""
    fill(DOCS / "bend.md", {"measured": bends})
    spikes = [found[None, seed] for seed in SEEDS]
    spiked = f"""
In the first step of `troth simulate --code int8 --byzantine {LIARS} --attack spike --attack-start {START} --seed …`, against the same step without
liars, seeds 0, 1, 2: steps of codes are {by_seed(f"{run['median']:.0f}" for run in spikes)} times as large in the median block, at most
{by_seed(f"{run['most']:.0f}" for run in spikes)} times; rounding moves the aggregate by {100 * mean(run["spiked"] for run in spikes):.3f} % of the honest
one's length, in place of {100 * mean(run["calm"] for run in spikes):.4f} %. The runs of `python -m benchmarks.code_lies` on {machine()}.
"""
    fill(DOCS / "spike.md", {"measured": spiked})
    print(bends, spiked)


def main() -> None:
    jobs: list[Job] = [(case, seed) for case in (None, *CASES) for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        write(dict(zip(jobs, pool.map(figures, jobs), strict=True)))


if __name__ == "__main__":
    main()
