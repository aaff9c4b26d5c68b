"""Other hardware computes other bits: imitating it, recognising it, and measuring how far off it is (SPEC D3)."""

from troth.training.hardware.classes import class_digest, describe, facts_of
from troth.training.hardware.imitation import gradient_on
from troth.training.hardware.machines import Job, Machine, MachineSpec, make_machines
from troth.training.hardware.measurement import Measurement, Spread, distances, extrapolated, measure

__all__ = [
    "Job",
    "Machine",
    "MachineSpec",
    "Measurement",
    "Spread",
    "class_digest",
    "describe",
    "distances",
    "extrapolated",
    "facts_of",
    "gradient_on",
    "make_machines",
    "measure",
]
