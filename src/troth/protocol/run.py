"""What all members of a run have agreed on before it starts."""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from troth.crypto import Digest, PeerId, tagged_hash

# D coordinates, K projections


class RunError(ValueError):
    """Parameters that no run can have; the message says which and why."""


@dataclass(frozen=True)
class Parameters:
    """The protocol's numbers. Defaults are those of the design."""

    size: int  # D, the number of model parameters
    tau: float  # clipping radius for the whole vector
    byzantine: int  # b, the most liars that the run promises to withstand
    validators: int = 1  # m, how many audit instead of contributing
    projections: int = 16  # K
    beyond_guarantee: bool = False  # researchers may ask for more liars than the promise covers

    def __post_init__(self) -> None:
        if self.size < 1 or self.projections < 1 or self.projections > 64:
            raise RunError(f"needs at least one parameter and 1 to 64 projections, got {self}")
        if not 2.0**-300 <= self.tau <= 2.0**300:
            raise RunError(f"tau must be a positive number that can be squared, got {self.tau}")
        if self.byzantine < 0 or self.validators < 0:
            raise RunError(f"byzantine and validators must not be negative, got {self}")

    def part_tau(self, length: int) -> float:
        """The radius of a part of `length` numbers: a part of d among D numbers has `τ√(d/D)`."""
        return self.tau * sqrt(length / self.size)


@dataclass(frozen=True)
class Run:
    """Founders, parameters, and the description that everything else (task, optimizer, data) follows from."""

    founders: tuple[PeerId, ...]
    description: bytes
    parameters: Parameters
    nonce: bytes  # 32 random bytes: two runs by the same people with the same plan are different runs

    def __post_init__(self) -> None:
        if len(self.nonce) != 32:
            raise RunError(f"the nonce must have 32 bytes, got {len(self.nonce)}")
        if not self.founders or tuple(sorted(set(self.founders))) != self.founders:
            raise RunError("founders must be distinct and sorted by key")
        if self.parameters.size < len(self.founders):
            raise RunError(f"a model of {self.parameters.size} parameters cannot be split among {len(self.founders)}")
        most = most_byzantine(len(self.founders), self.parameters.validators)
        if self.parameters.byzantine > most and not self.parameters.beyond_guarantee:
            raise RunError(
                f"{self.parameters.byzantine} liars among {len(self.founders)} peers with "
                f"{self.parameters.validators} validators: the guarantee needs 2b < n − m, so at most {most}"
            )

    @cached_property
    def id(self) -> Digest:
        """The run's name. It is in everything that is signed, so nothing from one run counts in another."""
        numbers = self.parameters
        return tagged_hash(
            "troth/run/1",
            self.nonce,
            self.description,
            repr((numbers.size, numbers.tau.hex(), numbers.byzantine, numbers.validators)).encode(),
            repr((numbers.projections, numbers.beyond_guarantee)).encode(),
            *self.founders,
        )


def effective_validators(members: int, validators: int) -> int:
    """`m_t = min(m, ⌊(n_t − 1)/3⌋)`."""
    return min(validators, (members - 1) // 3)


def most_byzantine(members: int, validators: int) -> int:
    """The largest b with `2b < n − m`; without a validator nobody is ever caught, so then it is 0."""
    active = effective_validators(members, validators)
    return (members - active - 1) // 2 if active else 0
