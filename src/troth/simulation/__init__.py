"""Simulated runs: the protocol among many peers in one process, and prior work's trusted server beside it."""

from troth.simulation.protocol_run import ProtocolSimulation
from troth.simulation.report import Ban, StepReport
from troth.simulation.run import simulate
from troth.simulation.scenario import ALSO, TROTH, Scenario, ScenarioError
from troth.simulation.server import ServerSimulation

__all__ = [
    "ALSO",
    "TROTH",
    "Ban",
    "ProtocolSimulation",
    "Scenario",
    "ScenarioError",
    "ServerSimulation",
    "StepReport",
    "simulate",
]
