"""What the protocol asks of the outside world. Simulation and network implement these; attacks wrap them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from torch import Tensor

from troth.crypto import Digest, PeerId, Seed, Slot
from troth.protocol.core.coins import Coins
from troth.protocol.core.parts import ProvenPart
from troth.protocol.wire.messages import Announced, Envelope, Malformed, Measured, Message, SignedRejoin

ProvenParts = Mapping[int, Mapping[PeerId, ProvenPart]]  # part → contributor → what it sent
Delivery = tuple[int, PeerId]  # a part, and whose
Showing = tuple[int, PeerId]  # a part, and who lays it open
Equivocations = Mapping[PeerId, tuple[Slot, Envelope, Envelope]]  # who said two things in one place

T = TypeVar("T")  # whatever the training side calls its state

# D coordinates


@dataclass(frozen=True)
class Blame:
    """Why there was no certificate, as one member saw it (SPEC F1). Empty where there was one."""

    unheard: frozenset[PeerId] = frozenset()  # whose value or view did not come in time
    incomplete: frozenset[PeerId] = (
        frozenset()
    )  # who claimed not to have heard everyone, or something else than was said, or that somebody who spoke was gone


@dataclass(frozen=True)
class Entry:
    """What an attempt is like for one peer."""

    members: frozenset[PeerId]  # who takes part in its announcements
    awaited: Mapping[int, frozenset[PeerId]] = field(default_factory=dict)  # whose parts this peer is to receive
    disputed_links: Mapping[PeerId, frozenset[PeerId]] = field(
        default_factory=dict
    )  # who do not reach each other (SPEC F2)
    far: Mapping[int, frozenset[PeerId]] = field(default_factory=dict)  # whom to ask for which aggregates (SPEC F2)
    admitted: frozenset[PeerId] = frozenset()  # who will be a member after this step
    audits: int = 1  # gradients that somebody has to recompute before the next Accuse or Vote
    disputed: int = 1  # parts that are laid open before the next Vote
    liars: int = 0  # that may be among the members
    quorum: int = 0  # of the members at step start, for everything that needs one; 0: more than half, and liars unknown
    step: int = -1  # of which step it is; -1 for a peer that is in none


class Channel(Protocol):
    """Two channels, no more: agreed announcements, and bulk blobs that are checked on arrival."""

    def enter(self, entry: Entry) -> None:
        """An attempt begins."""
        ...

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        """After this every honest member holds the same map. Who is absent or malformed is not in it."""
        ...

    def equivocations(self, step: int) -> Equivocations:
        """Who was found, by everyone alike, to say two things in one announcement of this step."""
        ...

    def blame(self) -> Blame:
        """Who made announcements slow since this was last asked (SPEC F1)."""
        ...

    def rejoins(self, step: int) -> Iterable[SignedRejoin]:
        """Who has said, to this peer, that it wants to come back after this step (SPEC B3)."""
        ...

    def took(self) -> Measured | None:
        """How long things took here in the last steps (SPEC Q8)."""
        ...

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        """Send parts to their owners; receive, by part and sender, those that this peer owns. Not yet checked."""
        ...

    async def gather(self, slot: Slot, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]) -> Mapping[int, bytes]:
        """Offer the aggregates one has; receive those asked for that anyone has, by part. Only their digests are checked."""
        ...

    async def disclose(
        self, slot: Slot, mine: ProvenParts, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, ProvenPart]]:
        """Hand everyone parcels of disputed parts. What is wanted of each part are `count` parcels from one peer, and from nobody
        else, or a liar could put something in its place. Not yet checked."""
        ...

    async def pass_on(
        self,
        slot: Slot,
        proven_parts: Mapping[Delivery, tuple[PeerId, ProvenPart]],
        wanted: Collection[Delivery],
        fits: Callable[[Delivery, ProvenPart], bool],
    ) -> Mapping[Delivery, ProvenPart]:
        """Pass on to owners what contributors handed round; receive what others pass on to this peer, and fits."""
        ...


class Work(Protocol[T]):
    """The training side: everything the protocol need not know about models and optimizers."""

    async def gradient(self, training: T, seed: Seed, step: int) -> Tensor:
        """This peer's contribution, D float32 numbers, all finite."""
        ...

    async def recompute(self, training: T, seed: Seed) -> Tensor:
        """What the peer with that seed should have computed: a call of its own, from public inputs only."""
        ...

    def update(self, training: T, aggregate_D: Tensor, updates: int) -> T:
        """The optimizer's step after so many others; the old state stays as it was, since audits still need it."""
        ...

    def digest(self, training: T) -> Digest: ...

    def hardware_class(self) -> Digest:
        """Equal where gradients come out in the same bits (SPEC D3)."""
        ...

    def pack(self, training: T) -> bytes:
        """The state as it travels to somebody who comes back."""
        ...

    def unpack(self, raw: bytes) -> T | Malformed:
        """Whatever a peer sent; what it stands for is checked by its digest."""
        ...


class Entropy(Protocol):
    """Secrets of this peer alone."""

    def coins(self, step: int, attempt: int) -> Coins: ...
