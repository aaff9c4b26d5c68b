"""The connections of a transport, of any kind, once there is a stream: accepted in order, within bounds, closed together."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from troth.network.transport.base import TransportClosedError, TransportLimits
from troth.network.transport.connection import StreamConnection, Vetting
from troth.network.transport.framing import Throttle

_MOST_PER_PEER = 4
_MOST_LINGERING = 16  # connections that we hung up on and that have not read why yet; honest peers read it at once
_MOST_NOTED = 512
_FORGET_S = 3600.0

_log = logging.getLogger("troth.network")


class ConnectionPool:
    """The connections of one transport, in order of arrival.

    A peer may hold _MOST_PER_PEER that it opened; the oldest goes first, since after a cut the newest is the one that works.
    """

    def __init__(self, limits: TransportLimits, lost: Callable[[StreamConnection], None] = lambda _: None) -> None:
        self._limits = limits
        self._lost = lost
        self._throttle: Throttle | None = None
        self._unaccepted: dict[StreamConnection, None] = {}
        self._arrival = asyncio.Event()
        self.connections: dict[StreamConnection, None] = {}
        self.warnings = RareWarnings()
        self.closed = False

    def new_connection(self, vet: Vetting, *, dialled: bool, source: str) -> StreamConnection:
        if self._limits.bytes_per_second is not None and self._throttle is None:
            self._throttle = Throttle(self._limits.bytes_per_second, asyncio.get_running_loop())
        return StreamConnection(
            self._limits,
            self._throttle,
            dialled=dialled,
            source=source,
            vet=vet,
            made=self._remember,
            lost=self._forget,
        )

    def has_place(self, new: int) -> bool:
        """Whether there is a place for so many connections more that others open. If all are taken, the oldest of the key that
        opened most makes room, if that key has another. Else members who lie could take all places before honest ones come, four
        under each key of theirs."""
        accepted = [one for one in self.connections if not (one.dialled or one.refusal or one.why)]
        if len(accepted) + new <= self._limits.most_connections:
            return True
        ((busiest, count),) = Counter(one.peer for one in accepted).most_common(1)
        if count > 1:
            next(one for one in accepted if one.peer == busiest).close("replaced by a newer connection")
        return count > 1

    def admit(self, connection: StreamConnection) -> None:
        theirs = [one for one in self.connections if one.peer == connection.peer and not one.dialled]
        for old in theirs[:-_MOST_PER_PEER]:
            old.close("replaced by a newer connection")
        self._crowd_out()
        hung_up = [one for one in self.connections if one.why and not one.dialled]
        for old in hung_up[:-_MOST_LINGERING]:
            old.abandon()
        self._unaccepted[connection] = None
        self._arrival.set()

    def _crowd_out(self) -> None:
        """Hang up on those that nobody knows, if there are too many: the first from the address that most of them came from, so
        that a crowd only crowds out itself [M4]."""
        unknown = [one for one in self.connections if not (one.known or one.dialled or one.why)]
        for _ in range(len(unknown) - self._limits.most_unknown):
            ((busiest, _count),) = Counter(one.source for one in unknown).most_common(1)
            oldest = next(one for one in unknown if one.source == busiest)
            unknown.remove(oldest)
            oldest.close("too many strangers")

    async def accept(self) -> StreamConnection:
        while True:
            while self._unaccepted:
                connection = next(iter(self._unaccepted))
                del self._unaccepted[connection]
                if not connection.why:
                    return connection
            if self.closed:
                raise TransportClosedError("this transport was closed")
            self._arrival.clear()
            await self._arrival.wait()

    async def close(self, *also: asyncio.Task[None]) -> None:
        """Close all connections, while the rest of the transport ends too."""
        self.closed = True
        for connection in list(self.connections):
            connection.close("shutting down")
        await asyncio.gather(*(one.closed() for one in self.connections), *also, return_exceptions=True)
        if self._throttle is not None:
            self._throttle.close()
        self._arrival.set()

    def _remember(self, connection: StreamConnection) -> None:
        self.connections[connection] = None

    def _forget(self, connection: StreamConnection) -> None:
        self.connections.pop(connection, None)
        self._unaccepted.pop(connection, None)  # else coming and going would fill our memory
        self._lost(connection)
        if connection.misbehaviour:
            self.warnings.warn("misbehaved", connection.peer.hex()[:16], connection.misbehaviour)


class RareWarnings:
    """Logs hostile events once per kind and source: else strangers could fill the log.

    At most _MOST_NOTED lines in _FORGET_S, whatever happens.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._since = 0.0

    def warn(self, kind: str, source: str, what: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._since >= _FORGET_S:
            self._seen.clear()
            self._since = now
        if (kind, source) in self._seen or len(self._seen) >= _MOST_NOTED:
            return
        self._seen.add((kind, source))
        quiet = "; no more such lines for a while" if len(self._seen) == _MOST_NOTED else ""
        _log.warning("%s: %s%s", source or "here", what, quiet)
