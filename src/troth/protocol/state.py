"""What a peer carries from one step to the next."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Signature
from troth.protocol.channel import Channel, Entropy, Work
from troth.protocol.messages import Announced
from troth.protocol.parts import Bounds
from troth.protocol.primitives import Primitives
from troth.protocol.records import StepRecord
from troth.protocol.roles import first_randomness
from troth.protocol.roster import Roster
from troth.protocol.run import Run

T = TypeVar("T")

# D coordinates


@dataclass(frozen=True)
class Peer(Generic[T]):
    """One member: who it is, and what it was given to work with."""

    identity: Identity
    run: Run
    work: Work[T]
    channel: Channel
    entropy: Entropy
    tools: Primitives

    @property
    def me(self) -> PeerId:
        return self.identity.peer


@dataclass(frozen=True)
class Kept(Generic[T]):
    """What is kept of a step until the next one has audited it (SPEC K1)."""

    step: int
    training: T  # the state that gradients were taken at
    seed_randomness: Digest
    owners: tuple[PeerId, ...]  # by part, as of the last attempt
    bounds: Bounds
    aggregate_D: Tensor
    projection_key: Digest
    commits: Mapping[PeerId, Announced]  # of the contributors
    reports: Mapping[PeerId, Announced]

    @property
    def contributors(self) -> tuple[PeerId, ...]:
        return tuple(sorted(self.commits))


@dataclass(frozen=True)
class State(Generic[T]):
    """Everything that honest peers hold in common at the start of a step."""

    step: int
    roster: Roster
    training: T
    randomness: Digest  # r of the last step: roles
    earlier_randomness: Digest  # r of the step before: seeds
    kept: Kept[T] | None

    @classmethod
    def first(cls, run: Run, training: T) -> "State[T]":
        randomness, earlier = first_randomness(run)
        return cls(0, Roster.founding(run), training, randomness, earlier, None)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A finished step: where the peer stands now, and what it can show for it."""

    state: State[T]
    record: StepRecord
    record_signatures: Mapping[PeerId, Signature]
    commits: Mapping[PeerId, Announced]
    accuses: Mapping[int, Mapping[PeerId, Announced]]  # by attempt
    votes: Mapping[int, Mapping[PeerId, Announced]]  # by attempt
    audited: PeerId | None  # whom this peer audited in this step
