"""Run a scenario to its end and write down how it went."""

from collections.abc import Callable

import troth
from troth.evidence import RunSummary
from troth.simulation.scenario import Scenario
from troth.simulation.server import ServerSimulation, StepReport


def simulate(scenario: Scenario, on_step: Callable[[StepReport], None] = lambda _: None) -> RunSummary:
    """All of it: `on_step` hears of every step, the summary says the rest."""
    simulation = ServerSimulation(scenario)
    curve: list[dict[str, float]] = [{"step": 0, **simulation.evaluate()}]
    steps = 0
    for report in simulation.steps():
        steps = report.step
        if report.metrics is not None:
            curve.append({"step": report.step, **report.metrics})
        on_step(report)
    if curve[-1]["step"] != steps or simulation.diverged_at is not None:
        curve.append({"step": steps, **simulation.evaluate()})
    metrics = {name: value for name, value in curve[-1].items() if name != "step"}
    return RunSummary(
        version=troth.__version__,
        peers=scenario.peers,
        byzantine=simulation.byzantine,
        steps=steps,
        attack=scenario.attack if scenario.byzantine else None,
        defence=scenario.defence,
        metrics=metrics,
        curve=curve,
        details={
            "parameters": simulation.problem.size,
            "gradients": simulation.problem.why_one_by_one or "all peers in one call",
            "attacked_steps": simulation.attacked_steps,
            "diverged_at": simulation.diverged_at,
        },
        config=simulation.scenario.as_dict(),
    )
