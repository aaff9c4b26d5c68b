"""Requests to the libp2p daemon over its socket, and the little of protocol buffers that they need.

hivemind's own client leaves sockets open when a request fails or is given up.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from math import ceil
from typing import Any, NamedTuple

from troth.crypto.identity import PeerId
from troth.errors import printable
from troth.network.transport.libp2p.daemon import Daemon
from troth.network.transport.libp2p.multiaddr import encode_multiaddr, encode_varint, libp2p_id, peer_of_libp2p

_HOP = "/libp2p/circuit/relay/0.2.0/hop"
_HOP_RESERVE = bytes((2, 0x08, 0))  # a message of two bytes: field 1, the type, is 0
_HOP_OK = 100
_HOP_ANSWER_BYTES = 4096


class DaemonError(Exception):
    """A request that the daemon could not meet; its own words."""


class Stream(NamedTuple):
    """A stream to another peer, once its daemon has proved a key."""

    peer: PeerId | None  # None: a key of another kind than ours
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Control:
    """The requests that we make of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._path = str(daemon.folder / "p2pd.sock")
        self._messages: Any = import_module("hivemind.proto.p2pd_pb2")

    async def addresses(self) -> list[bytes]:
        """Our own addresses."""
        async with self._ask(self._messages.Request(type="IDENTIFY")) as (answer, _, _):
            return list(answer.identify.addrs)

    async def connect(self, peer: bytes, addresses: Sequence[str], within_s: float) -> None:
        connect = {"peer": peer, "addrs": [encode_multiaddr(one) for one in addresses], "timeout": ceil(within_s)}
        async with self._ask(self._messages.Request(type="CONNECT", connect=connect)):
            pass

    async def disconnect(self, peer: PeerId) -> None:
        async with self._ask(self._messages.Request(type="DISCONNECT", disconnect={"peer": libp2p_id(peer)})):
            pass

    async def protect(self, peer: PeerId) -> None:
        """Tag a peer, so that among too many connections the daemon cuts those of strangers."""
        tag = {"type": "TAG_PEER", "peer": libp2p_id(peer), "tag": "troth", "weight": 100}
        async with self._ask(self._messages.Request(type="CONNMANAGER", connManager=tag)):
            pass

    async def open_stream(self, peer: PeerId, protocol: str, within_s: float) -> Stream:
        opening = {"peer": libp2p_id(peer), "proto": [protocol], "timeout": ceil(within_s)}
        async with self._ask(self._messages.Request(type="STREAM_OPEN", streamOpen=opening), keep_open=True) as (
            answer,
            reader,
            writer,
        ):
            return Stream(peer_of_libp2p(answer.streamInfo.peer), reader, writer)

    async def relay_limit(self, relay: bytes, within_s: float) -> int | None:
        """Bytes that this relay would pass on to us for each connection. None: it refuses; 0: it states no limit.

        https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md: we ask for a reservation, and read its terms.
        """
        opening = {"peer": relay, "proto": [_HOP], "timeout": ceil(within_s)}
        async with self._ask(self._messages.Request(type="STREAM_OPEN", streamOpen=opening)) as (_, reader, writer):
            writer.write(_HOP_RESERVE)
            size = await _read_varint(reader)
            if size > _HOP_ANSWER_BYTES:
                raise DaemonError("the relay does not keep to its protocol")
            answer = protobuf_fields(await reader.readexactly(size))
        if answer.get(5) != _HOP_OK:
            return None
        terms = answer.get(4, b"")
        limit = protobuf_fields(terms).get(2, 0) if isinstance(terms, bytes) else 0
        return limit if isinstance(limit, int) else 0

    async def connections(self) -> list[tuple[bytes, bytes]]:
        """Every connected peer, and its address."""
        async with self._ask(self._messages.Request(type="LIST_PEERS")) as (answer, _, _):
            return [(one.id, one.addrs[0]) for one in answer.peers]

    @asynccontextmanager
    async def _ask(
        self, request: Any, keep_open: bool = False
    ) -> AsyncIterator[tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]]:
        """Raises DaemonError, OSError, EOFError."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        kept_open = False
        try:
            raw = request.SerializeToString()
            writer.write(encode_varint(len(raw)) + raw)
            answer = self._messages.Response.FromString(await reader.readexactly(await _read_varint(reader)))
            if answer.type != self._messages.Response.OK:
                raise DaemonError(answer.error.msg)
            yield answer, reader, writer
            kept_open = keep_open
        finally:
            if not kept_open:
                writer.transport.abort()


def protobuf_fields(raw: bytes) -> dict[int, int | bytes]:
    """Numbers and strings by their field's number; of repeated ones the last. Raises DaemonError."""
    found: dict[int, int | bytes] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while at < len(raw) and shift < 64:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise DaemonError("a malformed protocol buffer")

    while at < len(raw):
        field, kind = divmod(number(), 8)
        if kind == 0:
            found[field] = number()
        elif kind == 2:
            size = number()
            if size > len(raw) - at:
                raise DaemonError("a malformed protocol buffer")
            found[field] = raw[at : at + size]
            at += size
        else:
            raise DaemonError("a malformed protocol buffer")
    return found


async def _read_varint(reader: asyncio.StreamReader) -> int:
    number = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7
        if shift > 63:
            raise DaemonError("a number without end")


def in_words(complaint: str, peer: PeerId) -> str:
    """A complaint of the daemon about this peer, in words for people."""
    if "peer id mismatch" in complaint:
        return f"another key answers than {peer.hex()[:16]}"
    if "protocols not supported" in complaint:
        return "it does not speak Troth, or another version of it"
    if "NO_RESERVATION" in complaint:
        return "the relay does not know it (any more)"
    if "dial backoff" in complaint:
        return "it could not be reached a moment ago; waiting before the next attempt"
    reason = " ".join(complaint.removeprefix("Connect failed. msg=").split())
    return f"cannot reach it: {printable(reason)[:200]}"
