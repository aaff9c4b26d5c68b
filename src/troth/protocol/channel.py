"""What the protocol asks of the outside world. Simulation and network implement these; attacks wrap them."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from torch import Tensor

from troth.crypto import Context, Digest, PeerId, Seed, Signature
from troth.protocol.coins import Coins
from troth.protocol.messages import Announced, Envelope, Message
from troth.protocol.parts import Parcel

PartParcels = Mapping[int, Mapping[PeerId, Parcel]]  # part → contributor → what it sent
Doubles = Mapping[PeerId, tuple[Context, Envelope, Envelope]]  # who said two things in one place

T = TypeVar("T")  # whatever the training side calls its state

# D coordinates


class Channel(Protocol):
    """Two channels, no more: agreed announcements, and bulk blobs that are checked on arrival."""

    def enter(self, members: frozenset[PeerId], awaited: Mapping[int, frozenset[PeerId]]) -> None:
        """An attempt begins: who takes part in its announcements, and whose parts this peer is to receive."""
        ...

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        """After this every honest member holds the same map. Who is absent or malformed is not in it."""
        ...

    def doubles(self, step: int) -> Doubles:
        """Who was found, by everyone alike, to say two things in one announcement of this step."""
        ...

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        """Send parts to their owners; receive, by part and sender, those that this peer owns. Not yet checked."""
        ...

    async def gather(
        self, context: Context, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]
    ) -> Mapping[int, bytes]:
        """Offer the aggregates one has; receive those asked for that anyone has, by part. Not yet checked."""
        ...

    async def lay_open(
        self, context: Context, mine: PartParcels, wanted: Mapping[int, PeerId], count: int
    ) -> PartParcels:
        """Hand everyone parcels of disputed parts. What is wanted of each part are `count` parcels from one peer, and from nobody
        else, or a liar could put something in its place. Not yet checked."""
        ...

    async def sign_record(self, context: Context, signature: Signature) -> Mapping[PeerId, Signature]:
        """Hand out one's signature of the record, collect the others'."""
        ...


class Work(Protocol[T]):
    """The training side: everything the protocol need not know about models and optimizers."""

    async def gradient(self, training: T, seed: Seed, step: int) -> Tensor:
        """This peer's contribution, D float32 numbers, all finite."""
        ...

    async def recompute(self, training: T, seed: Seed) -> Tensor:
        """What the peer with that seed should have computed: a call of its own, from public inputs only."""
        ...

    def update(self, training: T, aggregate_D: Tensor, step: int) -> T:
        """The optimizer's step; the old state stays as it was, since audits still need it."""
        ...

    def digest(self, training: T) -> Digest: ...

    def hardware_class(self) -> Digest:
        """Equal where gradients come out in the same bits (SPEC D3)."""
        ...


class Entropy(Protocol):
    """Secrets of this peer alone."""

    def coins(self, step: int, attempt: int) -> Coins: ...
