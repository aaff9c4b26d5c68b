"""Simulated runs: the protocol among many peers in one process, and prior work's trusted server beside it."""

from troth.simulation.lockstep.defences import TROTH, DefenceError, make_rule
from troth.simulation.lockstep.protocol_run import ProtocolSimulation
from troth.simulation.lockstep.report import Ban, StepReport
from troth.simulation.lockstep.run import Finished, Started, simulate, start
from troth.simulation.lockstep.scenario import Scenario, ScenarioError
from troth.simulation.lockstep.server import ServerSimulation
from troth.specs import ALSO

__all__ = [
    "ALSO",
    "TROTH",
    "Ban",
    "DefenceError",
    "Finished",
    "ProtocolSimulation",
    "Scenario",
    "ScenarioError",
    "ServerSimulation",
    "Started",
    "StepReport",
    "make_rule",
    "simulate",
    "start",
]
