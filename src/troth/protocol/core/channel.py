"""Interfaces to the outside world. Simulation and network implement them; attacks wrap them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from troth.crypto import Digest, PeerId, Seed, Slot
from troth.protocol.core.parts import ProvenPart
from troth.protocol.core.roles import Coins
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Envelope, Malformed, Measured, Message, Probe, SignedRejoin, Ticket

Said = Mapping[PeerId, Announced]  # sender → its message
ProvenParts = Mapping[int, Mapping[PeerId, ProvenPart]]  # part → contributor → its proven part
Delivery = tuple[int, PeerId]  # a part, and its contributor
Showing = tuple[int, PeerId]  # a part, and the peer that discloses it
Equivocations = Mapping[PeerId, tuple[Slot, Envelope, Envelope]]  # sender → slot, and two messages for it

R = TypeVar("R")  # what an exchange gives in return
T = TypeVar("T")  # the state of the training side
T_co = TypeVar("T_co", covariant=True)

# D coordinates


@dataclass(frozen=True)
class Blame:
    """Reasons why an announcement took the fallback, as one member saw it (SPEC F1). Empty if it did not."""

    unheard: frozenset[PeerId] = frozenset()  # members whose value or view did not come in time
    incomplete: frozenset[PeerId] = frozenset()  # whose view lacks a value, has another, or lists one that spoke

    def __or__(self, other: "Blame") -> "Blame":
        return Blame(self.unheard | other.unheard, self.incomplete | other.incomplete)


@dataclass(frozen=True)
class AttemptView:
    """Participants, disputed links and work ahead of one attempt, the same for every call in it."""

    members: frozenset[PeerId]  # participants in its announcements
    disputed_links: Mapping[PeerId, frozenset[PeerId]] = field(default_factory=dict)  # by member, both ways (SPEC F2)
    admitted: frozenset[PeerId] = frozenset()  # keys of peers that return after this step
    audits: int = 1  # gradients that a member has to recompute before the next Accuse or Vote
    disputed: int = 1  # parts that are disclosed before the next Vote
    liars: int = 0  # L, the most liars among the members
    quorum: int = 0  # of the members at step start; 0: more than half, with L unknown
    step: int = -1  # -1 for a peer that is in no step
    leaves: bool = False  # of parts are shown before the next Accuse (SPEC V4)


class Exchange(Generic[R]):
    """Blobs that a member hands out, and those that it wants in return."""


@dataclass(frozen=True)
class Scatter(Exchange[ProvenParts]):
    """Parts for their owners. In return, by part and sender, the expected ones; not yet checked."""

    parts: Mapping[int, tuple[PeerId, ProvenPart]]
    expected: Mapping[int, frozenset[PeerId]]


@dataclass(frozen=True)
class Gather(Exchange[Mapping[int, Blob]]):
    """Aggregates for everyone. In return the wanted ones that anyone has, by part; only their digests are checked."""

    mine: Mapping[int, Blob]
    wanted: Mapping[int, Digest]
    ask: Mapping[int, frozenset[PeerId]]  # members to ask for aggregates that do not come by themselves
    owners: Mapping[int, PeerId] = field(default_factory=dict)  # not waited for, once they have disconnected


@dataclass(frozen=True)
class Disclose(Exchange[Mapping[Showing, Mapping[PeerId, ProvenPart]]]):
    """Disputed parts for everyone. In return `count` contributions to each part, from one peer each and from nobody else: a
    liar could put something in its place. Not yet checked."""

    mine: ProvenParts
    wanted: Collection[Showing]
    count: int


@dataclass(frozen=True)
class Forward(Exchange[Mapping[Delivery, ProvenPart]]):
    """Circulated parts for their owners, or leaves of parts for those who check them. In return those that others forward to this
    peer, and that fit."""

    parts: Mapping[Delivery, tuple[Sequence[PeerId], ProvenPart]]  # and who is to have them
    wanted: Collection[Delivery]
    fits: Callable[[Delivery, ProvenPart], bool]
    turn: int = 3  # since the last announcement: parts were scattered and circulated before


class Channel(Protocol):
    """Two things, no more: agreed announcements, and blobs that are checked on arrival."""

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        """After this every honest member holds the same map. Members who are silent or malformed are not in it."""
        ...

    async def exchange(self, slot: Slot, blobs: Exchange[R], view: AttemptView) -> R:
        """Hand out blobs, and collect the wanted ones until they are here or due."""
        ...


class ForwardingChannel:
    """The base of every wrapper: passes each call on. A wrapper overrides what it changes."""

    def __init__(self, inner: Channel) -> None:
        self._inner = inner

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        return await self._inner.announce(slot, message, view)

    async def exchange(self, slot: Slot, blobs: Exchange[R], view: AttemptView) -> R:
        return await self._inner.exchange(slot, blobs, view)


class Noticed(Protocol):
    """Observations of the broadcast layer, beside the messages, that a step has to announce. Those here are of a channel on which
    everyone hears the same, in no time, and nobody comes back."""

    def equivocations(self, step: int) -> Equivocations:
        """Equivocations in the announcements of this step, found by all members alike."""
        return {}

    def blame(self) -> Blame:
        """Blame for slow announcements since the last call (SPEC F1)."""
        return Blame()

    def rejoins(self, step: int) -> Iterable[SignedRejoin]:
        """Rejoin requests for this step that reached this peer (SPEC B3)."""
        return ()

    def latencies(self, step: int) -> Measured | None:
        """Times that this peer measured in the steps before this one (SPEC Q8)."""
        return None

    def tickets(self) -> Iterable[Ticket]:
        """Tickets of strangers that reached this peer (SPEC J4)."""
        return ()

    def probes(self, step: int) -> Iterable[Probe]:
        """Commitments of candidates for this step that reached this peer (SPEC J5)."""
        return ()


class NothingNoticed(Noticed):
    """`Noticed` where there is nothing to notice."""


NOTHING_NOTICED = NothingNoticed()


class Collected(Protocol[T_co]):
    """A state of which chunks come one by one, from anybody."""

    @property
    def missing(self) -> Collection[int]:
        """Numbers of chunks that are not here."""
        ...

    def length(self, number: int) -> int:
        """Bytes of one of these chunks."""
        ...

    def put(self, number: int, chunk: memoryview) -> bool:
        """Take a chunk, if it is the right one; False if it is wrong."""
        ...

    def state(self) -> T_co:
        """The state, once nothing is missing."""
        ...


class Work(Protocol[T]):
    """The training side: everything about models and optimizers."""

    async def gradient(self, training: T, seed: Seed, step: int) -> Tensor:
        """This peer's gradient: D float32 numbers, all finite (SPEC R2)."""
        ...

    async def recompute(self, training: T, seed: Seed) -> Tensor:
        """The gradient that the peer with this seed should have computed: a call of its own, from public inputs only."""
        ...

    @property
    def looks_ahead(self) -> bool:
        """Whether it begins what `expect` names. If not, the next model is made only when the step ends: two vectors less."""
        ...

    def expect(self, gradients: Sequence[tuple[T, Seed]]) -> None:
        """Take note that these will probably be asked for next, the first one first, at these very states, and no others. A
        work may begin them meanwhile, or do nothing: what it gives when asked is the same."""
        ...

    def took_ahead(self) -> float:
        """Seconds to allow for a gradient, where some were begun before they were asked for, and else 0 (SPEC Q8)."""
        ...

    def update(self, training: T, aggregate_D: Tensor, updates: int) -> T:
        """Apply the optimizer's step number `updates`; the old state stays as it was, since audits still need it."""
        ...

    def shortened(self, training: T) -> float:
        """Factor of the step that the optimizer made last, on the way to this state (SPEC U7)."""
        ...

    def digest(self, training: T) -> Digest: ...

    def hardware_class(self) -> Digest:
        """Digest that is equal on all machines whose gradients have the same bits (SPEC D3)."""
        ...

    def index(self, training: T) -> bytes:
        """Hashes of all chunks of the state, from which its digest follows, for a peer that comes back."""
        ...

    def length(self, training: T) -> int:
        """Bytes of the state."""
        ...

    def chunk(self, training: T, number: int) -> memoryview | None:
        """One chunk of the state, without a copy where that is possible; None if there is none of this number."""
        ...

    def collect(self, index: bytes, digest: Digest) -> "Collected[T] | Malformed":
        """Begin to collect the chunks of the state with this digest, if that is its index."""
        ...


class Entropy(Protocol):
    """Secrets of this peer alone."""

    def coins(self, step: int, attempt: int) -> Coins: ...
