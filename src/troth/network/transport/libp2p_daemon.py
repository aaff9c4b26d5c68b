"""The go-libp2p daemon inside hivemind's wheel: one process of ours, started with our key, gone when we are.

It is started here and not by hivemind's `P2P.create`, which has no way to say: use these relays and look for no others
(else the first reservation takes three minutes), relay as much for others as a training run needs, or keep the sockets
where nobody else can reach them.
"""

import asyncio
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from troth.crypto.identity import Identity, PeerId
from troth.errors import printable
from troth.network.transport.base import ListenError
from troth.network.transport.libp2p_addresses import encode_multiaddr, encode_varint, libp2p_id, peer_of_libp2p

_FOLDER = "troth-p2p-"
_START_S = 15.0
_STOP_S = 1.0
_ORPHAN_S = 30  # a daemon that nobody talks to ends by itself
_READY = b"Peer ID:"
_OUTPUT_BYTES = 4096  # that are kept of its output
# The daemon reports its addresses through a relay only if the relay's are public; its log has them all.
_LOG_LEVELS = "error,autorelay=debug"
_RELAY = re.compile(rb'\{"(?:id|peer|relay)": "(\w+)"')
CIRCUIT_BYTES = 2**40  # that our relay passes on for each connection, each way: as good as no limit
_CIRCUIT_TIME = "720h"
_HOP = "/libp2p/circuit/relay/0.2.0/hop"
_HOP_RESERVE = bytes((2, 0x08, 0))  # a message of two bytes: field 1, the type, is 0
_HOP_OK = 100
_HOP_ANSWER_BYTES = 4096
_MOST_VARINT_BYTES = 10  # of 64 bits


@dataclass(frozen=True)
class DaemonOptions:
    """How a daemon listens, announces itself and relays."""

    listen: tuple[str, ...]  # multiaddrs; none: it only dials, and is reached through relays
    announce: tuple[str, ...]  # instead of the addresses that it finds out itself
    relays: tuple[str, ...]  # others reach us through these; with a peer id at their end
    serves_relay: bool  # for others
    most_connections: int

    def arguments(self) -> list[str]:
        private, public = bool(self.relays), self.serves_relay and not self.relays
        values = {
            "hostAddrs": ",".join(self.listen),
            "announceAddrs": ",".join(self.announce),
            "trustedRelays": ",".join(self.relays),
            "idleTimeout": f"{_ORPHAN_S}s",
            "connLo": str(2 * self.most_connections),
            "connHi": str(4 * self.most_connections),
            "relayMaxCircuits": str(self.most_connections),
            "relayMaxReservations": str(self.most_connections),
            "relayDataLimit": str(CIRCUIT_BYTES),
            "relayTimeLimit": _CIRCUIT_TIME,
            "relayBufferSize": str(1 << 16),
        }
        switches = {
            "noListenAddrs": not self.listen,
            "autoRelay": private,
            "relayDiscovery": False,
            "relay": True,
            "relayService": public,
            "forceReachabilityPrivate": private,
            "forceReachabilityPublic": public,
            "dhtServer": not private and bool(self.listen),
            "dhtClient": private or not self.listen,
            "autonat": True,  # and with it hole punching
            "natPortMap": bool(self.listen) and not all("/127.0.0.1/" in one for one in self.listen),
            "connManager": True,
            "tls": True,
            "noise": False,  # TLS has hardware for its cipher
        }
        return [f"-{name}={value}" for name, value in values.items() if value] + [
            f"-{name}={int(on)}" for name, on in switches.items()
        ]


class Daemon:
    """A running daemon. `control` is the address of its socket."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.folder = folder  # nobody else can look into it
        self.control = f"/unix{folder}/p2pd.sock"
        self._process = process
        self.relays: frozenset[str] = frozenset()  # that have taken us, by their names
        self._output = b""  # the end of it
        self._line = b""  # an unfinished one
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, identity: Identity, options: DaemonOptions) -> "Daemon":
        """Raises ListenError."""
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=_in_memory()))
        key = folder / "key"
        self: Daemon | None = None
        try:
            with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(key_protobuf(identity))
            process = await asyncio.create_subprocess_exec(
                str(files("hivemind.hivemind_cli") / "p2pd"),
                f"-listen=/unix{folder}/p2pd.sock",
                f"-id={key}",
                *options.arguments(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=os.environ
                | {"GOLOG_LOG_LEVEL": _LOG_LEVELS}
                | ({"GOMAXPROCS": "1"} if options.serves_relay else {}),
            )
            self = cls(process, folder)
            async with asyncio.timeout(_START_S):
                await self._until_ready(options.listen)
            self._reader = asyncio.create_task(self._read_output())
        except TimeoutError as error:
            raise ListenError(f"the libp2p daemon did not start within {_START_S:g} s; try again") from error
        except OSError as error:
            raise ListenError(
                f"cannot start the libp2p daemon ({error.strerror or error}): reinstall it with pip install "
                "--force-reinstall --no-deps hivemind"
            ) from error
        finally:
            key.unlink(missing_ok=True)  # it has been read
            if self is None or self._reader is None:
                if self is not None:
                    await self.stop()
                shutil.rmtree(folder, ignore_errors=True)
        return self

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def stop(self) -> None:
        try:
            if not self.ended:
                with suppress(ProcessLookupError):
                    self._process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_S):
                        await self._process.wait()
            if not self.ended:
                with suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait({self._reader})
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _until_ready(self, listen: Sequence[str]) -> None:
        while _READY not in self._output:
            if not await self._read():
                raise ListenError(_why_not(self._output.decode("utf-8", "replace"), ", ".join(listen)))

    async def _read_output(self) -> None:
        """Read on, since a daemon stops when its pipe is full."""
        while await self._read():
            pass
        await self._process.wait()

    async def _read(self) -> bool:
        assert self._process.stdout is not None
        output = await self._process.stdout.read(_OUTPUT_BYTES)
        self._output = (self._output + output)[-_OUTPUT_BYTES:]
        *lines, rest = (self._line + output).split(b"\n")
        self._line = rest[-_OUTPUT_BYTES:]
        for line in lines:
            self._note_relay(line)
        return bool(output)

    def _note_relay(self, line: bytes) -> None:
        found = _RELAY.search(line)
        if found is None:
            return
        name = found[1].decode("ascii")
        if b"adding new relay" in line:
            self.relays |= {name}
        elif b"disconnected from relay" in line or b"failed to refresh relay slot" in line:
            self.relays -= {name}


def key_protobuf(identity: Identity) -> bytes:
    """The private key as libp2p stores it: type 1 (Ed25519), then 64 bytes: the secret and the public key."""
    password = secrets.token_bytes(32)
    private = serialization.load_pem_private_key(identity.sealed_key(password), password)
    assert isinstance(private, Ed25519PrivateKey)
    return bytes((0x08, 1, 0x12, 64)) + private.private_bytes_raw() + identity.peer


def _in_memory() -> str:
    """A file system that no disk and no backup ever sees, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def _sweep() -> None:
    """Remove the folders of processes that were killed, perhaps before they could remove a key."""
    for folder in Path(_in_memory()).glob(_FOLDER + "*"):
        with suppress(OSError):
            seen = folder.lstat()  # not through a link that somebody else has laid
            old = time.time() - seen.st_mtime > 2 * _START_S
            if old and seen.st_uid == os.getuid() and stat.S_ISDIR(seen.st_mode) and not _answers(folder / "p2pd.sock"):
                shutil.rmtree(folder, ignore_errors=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(0.2)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # too busy, perhaps
        return True


def _why_not(output: str, where: str) -> str:
    lines = output.strip().splitlines()
    if "address already in use" in output:
        return f"cannot listen on {where}: the port is taken; choose another one, or 0 for any that is free"
    if "cannot assign requested address" in output:
        return f"cannot listen on {where}: not an address of this machine; 0.0.0.0 means all of its own"
    if "permission denied" in output:
        return f"cannot listen on {where}: no permission; choose a port above 1023"
    return f"the libp2p daemon did not start: {lines[-1][:300] if lines else 'it said nothing'}"


class DaemonError(Exception):
    """A request that the daemon could not meet; its own words."""


class DaemonStream(NamedTuple):
    """A stream to another peer, once its daemon has proved a key."""

    peer: PeerId | None  # None: a key of another kind than ours
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Control:
    """The requests that we make of one daemon, over its socket: hivemind's own client leaves sockets open when a request fails or
    is given up."""

    def __init__(self, daemon: Daemon) -> None:
        self._path = str(daemon.folder / "p2pd.sock")
        self._messages: Any = import_module("hivemind.proto.p2pd_pb2")

    async def addresses(self) -> list[bytes]:
        """Our own addresses."""
        async with self._ask("IDENTIFY") as (answer, _, _):
            return list(answer.identify.addrs)

    async def connect(self, peer: bytes, addresses: Sequence[str], within_s: float) -> None:
        connect = {"peer": peer, "addrs": [encode_multiaddr(one) for one in addresses], "timeout": ceil(within_s)}
        async with self._ask("CONNECT", connect=connect):
            pass

    async def disconnect(self, peer: PeerId) -> None:
        async with self._ask("DISCONNECT", disconnect={"peer": libp2p_id(peer)}):
            pass

    async def protect(self, peer: PeerId) -> None:
        """Tag a peer, so that among too many connections the daemon cuts those of strangers."""
        tag = {"type": "TAG_PEER", "peer": libp2p_id(peer), "tag": "troth", "weight": 100}
        async with self._ask("CONNMANAGER", connManager=tag):
            pass

    async def open_stream(self, peer: PeerId, protocol: str, within_s: float) -> DaemonStream:
        opening = {"peer": libp2p_id(peer), "proto": [protocol], "timeout": ceil(within_s)}
        async with self._ask("STREAM_OPEN", keep_open=True, streamOpen=opening) as (answer, reader, writer):
            return DaemonStream(peer_of_libp2p(answer.streamInfo.peer), reader, writer)

    async def relay_limit(self, relay: bytes, within_s: float) -> int | None:
        """Bytes that this relay would pass on to us for each connection. None: it refuses; 0: it states no limit.

        https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md: we ask for a reservation, and read its terms.
        """
        opening = {"peer": relay, "proto": [_HOP], "timeout": ceil(within_s)}
        async with self._ask("STREAM_OPEN", streamOpen=opening) as (_, reader, writer):
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
        async with self._ask("LIST_PEERS") as (answer, _, _):
            return [(one.id, one.addrs[0]) for one in answer.peers]

    @asynccontextmanager
    async def _ask(
        self, kind: str, keep_open: bool = False, **fields: Any
    ) -> AsyncIterator[tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]]:
        """Make one request. Raises DaemonError, OSError, EOFError."""
        request = self._messages.Request(type=kind, **fields)
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
    while raw:
        number, raw = _varint(raw)
        field, kind = divmod(number, 8)
        if kind not in (0, 2):
            raise DaemonError("a malformed protocol buffer")
        number, raw = _varint(raw)
        if kind == 0:
            found[field] = number
        elif number <= len(raw):
            found[field], raw = raw[:number], raw[number:]
        else:
            raise DaemonError("a malformed protocol buffer")
    return found


def _varint(raw: bytes) -> tuple[int, bytes]:
    """The number that this begins with, and the rest. Raises DaemonError."""
    number = 0
    for place, byte in enumerate(raw[:_MOST_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, raw[place + 1 :]
    raise DaemonError("a malformed protocol buffer")


async def _read_varint(reader: asyncio.StreamReader) -> int:
    raw = await reader.readexactly(1)
    while raw[-1] >= 0x80 and len(raw) < _MOST_VARINT_BYTES:
        raw += await reader.readexactly(1)
    return _varint(raw)[0]


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
