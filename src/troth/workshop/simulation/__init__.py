"""Simulated runs: the protocol among many peers in one process, and prior work's trusted server beside it."""

from troth.specs import ALSO
from troth.workshop.simulation.protocol_run import ProtocolSimulation
from troth.workshop.simulation.report import SimulatedBan, StepReport
from troth.workshop.simulation.run import Finished, Started, simulate, start
from troth.workshop.simulation.scenario import TROTH, DefenceError, Scenario, ScenarioError, make_rule
from troth.workshop.simulation.server import ServerSimulation

__all__ = [
    "ALSO",
    "TROTH",
    "DefenceError",
    "Finished",
    "ProtocolSimulation",
    "Scenario",
    "ScenarioError",
    "ServerSimulation",
    "SimulatedBan",
    "Started",
    "StepReport",
    "make_rule",
    "simulate",
    "start",
]
