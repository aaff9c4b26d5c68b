"""Run a scenario to its end and write down how it went."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from troth.evidence.bans import BanEvidence
from troth.evidence.file_format import RunSummary
from troth.training import Problem, TaskError
from troth.version import __version__
from troth.workshop.simulation.protocol_run import ProtocolSimulation
from troth.workshop.simulation.report import StepReport
from troth.workshop.simulation.scenario import TROTH, Scenario
from troth.workshop.simulation.server import ServerSimulation


@dataclass(frozen=True)
class Finished:
    """The summary, for every ban the file that proves it (by name), and the model."""

    summary: RunSummary
    evidence: dict[str, BanEvidence]
    problem: Problem
    parameters_D: Tensor  # the last of them; `problem.state_dict(parameters_D)` is what the user's module loads
    names: dict[str, str]  # of peers, by key in hexadecimal; empty with a trusted server, who knows no keys
    ended_early: str = ""  # why it ended before its last step, if it did


def simulate(scenario: Scenario, on_step: Callable[[StepReport], None] = lambda _: None) -> Finished:
    """Run a scenario; `on_step` hears of every step, the result says the rest."""
    run = start(scenario)
    for report in run:
        on_step(report)
    return run.finish()


def start(scenario: Scenario, *, evidence: bool = True) -> "Started":
    """Check everything and get ready. Iterate over the result for a report of every step, then ask it to `finish`.

    Without `evidence` none is made: bans are as they are, and the result holds no files that prove them.
    """
    return Started(
        ProtocolSimulation(scenario, prove=evidence) if scenario.defence == TROTH else ServerSimulation(scenario)
    )


class Started:
    """A run on its way. Nothing is computed but what is asked for: every `next` is one step."""

    def __init__(self, simulation: ProtocolSimulation | ServerSimulation) -> None:
        self._simulation = simulation
        self.scenario = simulation.scenario  # with the task's suggestions filled in
        self.problem = simulation.problem
        self.unused_shards = simulation.unused_shards
        self.began = simulation.began  # of the stream of events; each report has its own
        self.curve: list[dict[str, float]] = [{"step": 0, **_checked(simulation.evaluate())}]
        self._done = 0
        self._steps = simulation.steps()

    @property
    def parameters_D(self) -> Tensor:  # noqa: N802  # shapes are in the names
        """The model as it is now."""
        return self._simulation.parameters_D

    @property
    def ended_early(self) -> str:
        """Why the run ended before its last step; empty if it did not."""
        simulation = self._simulation
        if simulation.diverged_at is not None:
            return (
                f"diverged at step {simulation.diverged_at}: honest gradients are not finite from there on, and the model is "
                "ruined; a lower learning rate may help"
            )
        return simulation.stalled or ""

    def __iter__(self) -> Iterator[StepReport]:
        return self

    def __next__(self) -> StepReport:
        report = next(self._steps)
        self._done = report.step
        if report.metrics is not None:
            self.curve.append({"step": report.step, **_plain(report.metrics)})
        return report

    def finish(self) -> Finished:
        """Make the steps that are left, if there are any, and sum up."""
        for _ in self:
            pass
        simulation = self._simulation
        if self.curve[-1]["step"] != self._done:
            self.curve.append({"step": self._done, **_plain(simulation.evaluate())})
        names = {peer.hex(): f"peer{number}" for peer, number in simulation.numbers.items()}
        evidence = {proof.file_name(names[proof.file.banned]): proof for proof in simulation.evidence}
        return Finished(self._summary(), evidence, self.problem, self.parameters_D, names, self.ended_early)

    def _summary(self) -> RunSummary:
        simulation, scenario = self._simulation, self.scenario
        details: dict[str, Any] = {
            "parameters": simulation.problem.size,
            "gradients": simulation.problem.why_one_by_one or "all peers in one call",
            "gradients_computed": simulation.gradients_computed,
            "attacked_steps": simulation.attacked_steps,
            "diverged_at": simulation.diverged_at,
            **simulation.details(),
        }
        details |= {"unused_shards": True} if self.unused_shards else {}
        return RunSummary(
            version=__version__,
            peers=scenario.peers,
            byzantine=simulation.byzantine,
            steps=self._done,
            attack=scenario.attack_name if scenario.byzantine else None,
            defence=scenario.defence_name,
            metrics={name: value for name, value in self.curve[-1].items() if name != "step"},
            curve=self.curve,
            details=details,
            config=scenario.config(),
        )


def _checked(metrics: Any) -> dict[str, float]:
    """Refuse metrics that could not be written down, before a run that would be lost with them."""
    if not isinstance(metrics, dict) or not all(isinstance(name, str) and name != "step" for name in metrics):
        raise TaskError("evaluate() must return a dict of numbers by name, and no name may be 'step'")
    for name, value in metrics.items():
        if not isinstance(value, int | float):
            raise TaskError(f"evaluate() gives '{name}' as {type(value).__name__}: make it a plain number, float(…)")
    return _plain(metrics)


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """Numbers that can be written down, where NumPy's own kind of float is one to Python too."""
    return {name: float(value) if isinstance(value, float) else value for name, value in metrics.items()}
