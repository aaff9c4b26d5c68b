"""Run a scenario to its end and write down how it went."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import troth
from troth.evidence import RunSummary
from troth.evidence.bans import BanEvidence
from troth.simulation.lockstep.protocol_run import ProtocolSimulation
from troth.simulation.lockstep.report import StepReport
from troth.simulation.lockstep.scenario import TROTH, Scenario
from troth.simulation.lockstep.server import ServerSimulation


@dataclass(frozen=True)
class Finished:
    """The summary, and for every ban the file that proves it (by name)."""

    summary: RunSummary
    evidence: dict[str, BanEvidence]


def simulate(scenario: Scenario, on_step: Callable[[StepReport], None] = lambda _: None) -> Finished:
    """Run a scenario; `on_step` hears of every step, the result says the rest."""
    simulation = ProtocolSimulation(scenario) if scenario.defence == TROTH else ServerSimulation(scenario)
    curve: list[dict[str, float]] = [{"step": 0, **simulation.evaluate()}]
    steps = 0
    for report in simulation.steps():
        steps = report.step
        if report.metrics is not None:
            curve.append({"step": report.step, **report.metrics})
        on_step(report)
    if curve[-1]["step"] != steps:
        curve.append({"step": steps, **simulation.evaluate()})
    details: dict[str, Any] = {
        "parameters": simulation.problem.size,
        "gradients": simulation.problem.why_one_by_one or "all peers in one call",
        "attacked_steps": simulation.attacked_steps,
        "diverged_at": simulation.diverged_at,
    }
    evidence: dict[str, BanEvidence] = {}
    if isinstance(simulation, ProtocolSimulation):
        details |= _protocol_details(simulation, steps)
        names = {peer.hex(): f"peer{number}" for peer, number in simulation.numbers.items()}
        evidence = {proof.file_name(names[proof.file.banned]): proof for proof in simulation.evidence}
    summary = RunSummary(
        version=troth.__version__,
        peers=scenario.peers,
        byzantine=simulation.byzantine,
        steps=steps,
        attack=scenario.attack if scenario.byzantine else None,
        defence=scenario.defence,
        metrics={name: value for name, value in curve[-1].items() if name != "step"},
        curve=curve,
        details=details,
        config=simulation.scenario.as_dict(),
    )
    return Finished(summary, evidence)


def _protocol_details(simulation: ProtocolSimulation, steps: int) -> dict[str, Any]:
    banned = {ban.peer for ban in simulation.bans}
    return {
        "attackers_active": sorted(simulation.pool.attackers),
        "banned": [asdict(ban) for ban in simulation.bans],
        "honest_banned": len(banned - set(simulation.byzantine)),
        "absent": simulation.absent,
        "stalled": simulation.stalled,
        "agreement": simulation.agreement,
        "announced_bytes_per_step": simulation.exchange.announced_bytes // max(1, steps),
        "bulk_bytes_per_step": simulation.exchange.bulk_bytes // max(1, steps),
        "audits": simulation.audits,
        "tolerant_audits": simulation.tolerant_audits,
        "trials": simulation.trials,
        "attempts": simulation.attempts,
        "beyond_guarantee": simulation.scenario.beyond_guarantee,
        "final_record": simulation.trace[-1].hex() if simulation.trace else None,
    }
