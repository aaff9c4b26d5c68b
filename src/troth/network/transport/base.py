"""The interface between Troth and the wire: transports that make connections to keys, two lanes of messages, and their bounds."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from math import isfinite
from typing import TYPE_CHECKING, Protocol

from troth.crypto.hashing import Digest
from troth.crypto.identity import Identity, PeerId
from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.network.transport.connection import StreamConnection

Piece = bytes | bytearray | memoryview
Message = Piece | tuple[Piece, ...]  # to send; not copied, so the caller must not change it afterwards
Received = bytes | memoryview  # bytes on the control lane; on the bulk lane writable memory that nobody else holds

LARGEST_MESSAGE = 2**32 - 1  # lengths travel as 32 bits
SLOWEST_BYTES_PER_SECOND = 1024  # a message under way has to move at least this fast, averaged over `idle_s`


def pieces_of(message: Message) -> tuple[memoryview, ...]:
    """The bytes of a message, where they lie."""
    return tuple(memoryview(piece).cast("B") for piece in (message if isinstance(message, tuple) else (message,)))


class Lane(IntEnum):
    """Control overtakes bulk, so that a verdict does not wait behind a gradient."""

    CONTROL = 0
    BULK = 1


class UnreachableError(Exception):
    """No connection to that peer. One line that says why; an everyday event, not a fault of the operator."""


class TransportClosedError(Exception):
    """`accept` or `listen` on a transport that was closed: our own shutdown."""


class ListenError(OperatorError):
    """The address cannot be listened on; the text names the fix."""


@dataclass(frozen=True)
class TransportLimits:
    """Every bound of a transport: no stranger can make this peer spend more than these allow."""

    most_control_bytes: int  # of one message
    most_bulk_bytes: int  # of one message
    most_queued_bytes: int  # outgoing, of one connection; a peer that needs more is too slow, and is hung up on
    most_received_bytes: int = 16 * 2**20  # received but not taken yet, of one connection; then reading pauses
    most_unknown_bytes: int = 16 * 2**10  # of one message, and not taken, of a peer that is not known yet [M4]
    most_unknown: int = 64  # accepted connections of such peers; then the oldest of the busiest address goes
    handshake_s: float = 5.0  # from the TCP connection to the proven key
    idle_s: float = 15.0  # nothing heard for this long: gone
    ping_s: float = 5.0  # nothing sent for this long: say that we are alive
    most_handshakes: int = 64  # strangers under way at once; then the oldest of the busiest address goes
    most_connections: int = 256  # accepted ones at once, whatever their keys
    bytes_per_second: float | None = None  # of all connections together, outgoing; None: no cap

    def __post_init__(self) -> None:
        for name, given in asdict(self).items():
            if name in ("most_control_bytes", "most_bulk_bytes"):
                self._want(1 <= given <= LARGEST_MESSAGE, name, f"be from 1 to {LARGEST_MESSAGE}")
            elif name.endswith("_s"):
                self._want(isfinite(given) and given > 0, name, "be a positive number of seconds")
            elif name.startswith("most_"):
                self._want(given >= 1, name, "be at least 1")
        largest = self.most_control_bytes + self.most_bulk_bytes
        fits = self.most_queued_bytes >= largest
        self._want(fits, "most_queued_bytes", f"hold the largest message of each lane ({largest})")
        self._want(self.idle_s >= 2 * self.ping_s, "idle_s", f"be at least twice ping_s ({self.ping_s})")
        # Below that, peers would hang up on us for trickling as soon as a few messages share the bandwidth.
        least = 64 * SLOWEST_BYTES_PER_SECOND
        self._want(
            self.bytes_per_second is None or self.bytes_per_second >= least, "bytes_per_second", f"be at least {least}"
        )

    def _want(self, fits: bool, name: str, what: str) -> None:
        if not fits:
            raise OperatorError(f"{name} must {what}, got {getattr(self, name)}")


class Transport(Protocol):
    """Makes connections. One per process and identity."""

    async def listen(self, address: str) -> str:
        """Start accepting at `host:port` (`[v6]:port`; port 0: any free one); the real address. Raises ListenError."""

    async def dial(self, address: str, peer: PeerId) -> "StreamConnection":
        """A connection to `peer`, which has taken us. Raises UnreachableError, also if another key answers."""

    async def accept(self) -> "StreamConnection":
        """The next connection that somebody else began, whoever that is. Raises TransportClosedError after `close`."""

    async def close(self) -> None:
        """Stop listening and hang up on everybody; returns within about a second."""


@dataclass(frozen=True)
class LocalPeer:
    """Everything that a transport may need to know of the peer that it serves."""

    identity: Identity
    limits: TransportLimits
    run: Digest
    belongs: Callable[[PeerId], bool]  # whether a key is a member's or a candidate's, as far as this peer has followed
    addresses: Mapping[PeerId, str] = field(default_factory=dict)  # of founders, where they are known


class TransportOptions(Protocol):
    """The choices for one kind of transport, and how to make it from them. `registry.TRANSPORTS` names all kinds."""

    @property
    def lookup_address(self) -> str:
        """The address to dial for a member that gave none; "" where such a member has to dial us."""

    @property
    def tells_address(self) -> bool:
        """Whether people need to see the address that `listen` returns."""

    def listen_address(self, port: int | None) -> str:
        """The address to listen on by default; `port` is the one that the manifest says, None if it says none."""

    def make(self, local: LocalPeer) -> Transport: ...
