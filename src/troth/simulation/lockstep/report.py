"""Reports of a simulation, after every step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ban:
    """Ban of a peer, by its number in this simulation."""

    peer: int
    step: int
    reason: str
    evidence: str  # name of the file that proves it


@dataclass(frozen=True)
class DoorEvent:
    """Something that happened to a stranger at the door, or to several who come together."""

    peer: int  # the first of them
    step: int
    what: str  # knocks, seated, half, waits, admitted, lost, returned
    words: str  # for people; begins with its name


@dataclass(frozen=True)
class StepReport:
    """`metrics` only where the model was evaluated; `guarantee`, `bans` and `door` only where there is a protocol."""

    step: int  # updates made so far
    loss: float  # mean over the honest peers' batches
    attacked: bool
    alive: int
    metrics: dict[str, float] | None
    bans: tuple[Ban, ...] = ()
    absent: tuple[int, ...] = ()  # peers that left the roster in this step without a ban
    guarantee: int | None = None  # number of liars there may still be
    moved: bool = True  # whether the model moved
    door: tuple[DoorEvent, ...] = ()
    probation: tuple[tuple[int, int], ...] = ()  # candidates, and how many steps they have worked
