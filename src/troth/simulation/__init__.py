"""Simulated runs: the protocol among many peers in one process, and prior work's trusted server beside it."""

from troth.simulation.lockstep.protocol_run import ProtocolSimulation
from troth.simulation.lockstep.report import Ban, StepReport
from troth.simulation.lockstep.run import simulate
from troth.simulation.lockstep.scenario import ALSO, TROTH, Scenario, ScenarioError
from troth.simulation.lockstep.server import ServerSimulation

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
