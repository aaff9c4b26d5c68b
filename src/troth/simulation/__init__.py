"""Simulated runs. For now with a trusted server; the protocol's own simulation comes with the protocol."""

from troth.simulation.run import simulate
from troth.simulation.scenario import Scenario, ScenarioError
from troth.simulation.server import ServerSimulation, StepReport

__all__ = ["Scenario", "ScenarioError", "ServerSimulation", "StepReport", "simulate"]
