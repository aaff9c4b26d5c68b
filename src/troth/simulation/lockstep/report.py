"""What a simulation says after every step, whichever kind it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ban:
    """A peer that had to leave, by its number in this simulation, and why."""

    peer: int
    step: int
    reason: str
    evidence: str  # name of the file that proves it


@dataclass(frozen=True)
class StepReport:
    """`metrics` only where the model was evaluated; `guarantee` and `bans` only where there is a protocol."""

    step: int  # updates made so far
    loss: float  # mean over the honest peers' batches
    attacked: bool
    alive: int
    metrics: dict[str, float] | None
    bans: tuple[Ban, ...] = ()
    absent: tuple[int, ...] = ()  # who left the roster in this step without a ban
    guarantee: int | None = None  # how many liars there may still be
    moved: bool = True  # whether the model moved
