"""The built-in transport: TLS over TCP. Listening, dialling, and keeping strangers cheap.

A stranger costs at most one of `most_handshakes` places for at most `handshake_s`. When all places are taken, the oldest
handshake from the address that holds most of them makes room, so that a flood from one address only crowds out itself.
After the handshake the stranger's key is known. Until the layer above recognises it, it has one of `most_unknown` places, which
make room by the same rule.
"""

import asyncio
import errno
import os
import socket
import ssl
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from troth.crypto.identity import Identity, PeerId, valid_peer
from troth.network.malloc import give_back_memory
from troth.network.transport.addresses import (
    Resolved,
    join_address,
    listening_socket,
    resolve,
    source_of,
    split_address,
)
from troth.network.transport.base import LocalPeer, TransportClosedError, TransportLimits, UnreachableError
from troth.network.transport.connection import CLOSE_S, StreamConnection, narrow, tune
from troth.network.transport.pool import ConnectionPool

_ACCEPTS_PER_TURN = 16
_LEAST_S = 0.1  # left for the handshake of a stranger that spoke at the last moment
_PAUSE_S = 0.25  # when no file descriptor is left
_TIDY_S = 2.0  # after a stranger came, or went: its memory goes back to the system


@dataclass(frozen=True)
class TcpOptions:
    """TCP has no choices of its own. A member that gave no address has to dial us."""

    lookup_address = ""
    tells_address = False

    def listen_address(self, port: int | None) -> str:
        return f"0.0.0.0:{port or 0}"

    def make(self, local: LocalPeer) -> "TcpTransport":
        return TcpTransport(local.identity, local.limits)


class TcpTransport:
    """See Transport."""

    def __init__(self, identity: Identity, limits: TransportLimits) -> None:
        self._limits = limits
        self._server_context = server_context(identity)
        self._client_context = client_context(identity)
        self._listeners: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handshakes: dict[socket.socket, str] = {}  # and their sources, in order of arrival
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = ConnectionPool(limits, self._lost)
        self._tidying: asyncio.TimerHandle | None = None

    async def listen(self, address: str) -> str:
        if self._pool.closed:
            raise TransportClosedError("this transport was closed")
        listener = await listening_socket(address)
        self._listeners.append(listener)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._take_strangers, listener)
        host, port = listener.getsockname()[:2]
        return join_address(host, port)

    async def accept(self) -> StreamConnection:
        return await self._pool.accept()

    async def dial(self, address: str, peer: PeerId) -> StreamConnection:
        if self._pool.closed:
            raise UnreachableError("this transport was closed")
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise UnreachableError(str(error)) from error
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                sock = await self._connect(await resolve(host, port))
                return await self._introduce(sock, peer)
        except TimeoutError as error:
            raise UnreachableError(f"no answer from {address} within {self._limits.handshake_s:g} s") from error
        except ssl.SSLError as error:
            _let_go(error)
            raise UnreachableError(f"what answers at {address} is no Troth peer ({_short(error)})") from error
        except ConnectionResetError as error:
            _let_go(error)
            raise UnreachableError(f"{address} hung up during the handshake") from error
        except OSError as error:
            raise UnreachableError(f"cannot reach {address}: {_short(error)}") from error

    async def close(self) -> None:
        self._pool.closed = True
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        if self._tidying is not None:
            self._tidying.cancel()
        for pause in self._pauses.values():
            pause.cancel()
        self._listeners.clear()
        self._pauses.clear()
        for sock in self._handshakes:
            _cut(sock)
        await self._pool.close(*self._tasks)

    # Dialling

    async def _connect(self, resolved: list[Resolved]) -> socket.socket:
        """The first address that answers; a silent one must not use up the time of the others."""
        failure: OSError = OSError(errno.EHOSTUNREACH, "no address")
        for family, where in resolved:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                tune(sock)
                async with asyncio.timeout(self._limits.handshake_s / len(resolved)):
                    await asyncio.get_running_loop().sock_connect(sock, where)
                return sock
            except OSError as error:  # a timeout is one, too
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure

    async def _introduce(self, sock: socket.socket, peer: PeerId) -> StreamConnection:
        def vet(tls: ssl.SSLObject) -> PeerId | str:
            found = peer_of(tls)
            if found != peer:
                return f"another key answers than {peer.hex()[:16]}"
            return found if tls.selected_alpn_protocol() == PROTOCOL else f"it does not speak {PROTOCOL}"

        connection = self._pool.new_connection(vet, dialled=True, source="")
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._client_context,
                server_hostname="",
                ssl_handshake_timeout=self._limits.handshake_s + 1,  # the deadline of dial() comes first
                ssl_shutdown_timeout=CLOSE_S,
            )
            if self._pool.closed:
                connection.close("shutting down")
            await connection.greeted()
        except BaseException:
            connection.abandon()
            _cut(sock)
            raise
        if connection.why:
            raise UnreachableError(connection.why)
        return connection

    # Accepting

    def _take_strangers(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptors or no memory: the next attempt would fail at once, and the one after it.
                self._pool.warnings.warn("accept", "", f"cannot accept connections for now: {error.strerror}")
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.fileno())
                self._pauses[listener] = loop.call_later(_PAUSE_S, self._listen_again, listener)
                return
            try:
                sock.setblocking(False)
                tune(sock)
                narrow(sock)
            except OSError:  # it is gone already
                sock.close()
                continue
            source = source_of(address[0])
            if len(self._handshakes) >= self._limits.most_handshakes:
                self._make_room()
            self._handshakes[sock] = source
            task = asyncio.create_task(self._handshake(sock, source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _listen_again(self, listener: socket.socket) -> None:
        del self._pauses[listener]
        asyncio.get_running_loop().add_reader(listener.fileno(), self._take_strangers, listener)

    def _make_room(self) -> None:
        busiest, _ = Counter(self._handshakes.values()).most_common(1)[0]
        oldest = next(sock for sock, source in self._handshakes.items() if source == busiest)
        del self._handshakes[oldest]
        _cut(oldest)
        self._pool.warnings.warn("crowd", busiest, "too many unfinished handshakes: the oldest are cut")

    async def _handshake(self, sock: socket.socket, source: str) -> None:
        """Take one stranger through TLS. Ends by itself (a deadline, or the socket is cut) and is never cancelled half way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.handshake_s
        connection = self._pool.new_connection(self._vet_stranger, dialled=False, source=source)
        try:
            await _first_word(sock, self._limits.handshake_s)
            await loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._server_context,
                ssl_handshake_timeout=max(_LEAST_S, deadline - loop.time()),
                ssl_shutdown_timeout=CLOSE_S,
            )
        except OSError as error:
            # A connection that the other side lost is nobody's fault: peers dial each other while a run ends.
            if not self._pool.closed and not isinstance(error, ConnectionError):
                self._pool.warnings.warn("handshake", source, f"no handshake: {_short(error)}")
            connection.abandon()
            _let_go(error)
            return
        except BaseException:
            connection.abandon()
            _cut(sock)
            raise
        else:
            if connection.refusal:
                self._pool.warnings.warn("refused", source, f"turned away: {connection.refusal}")
                await connection.closed()  # keeps its place until then
            elif self._pool.closed:
                connection.close("shutting down")
                await connection.closed()
            elif not connection.why:
                self._pool.admit(connection)
        finally:
            self._handshakes.pop(sock, None)
            self._tidy_up_soon()

    def _lost(self, connection: StreamConnection) -> None:
        if not connection.known:
            self._tidy_up_soon()

    def _tidy_up_soon(self) -> None:
        if self._tidying is None and not self._pool.closed:
            self._tidying = asyncio.get_running_loop().call_later(_TIDY_S, self._tidy_up)

    def _tidy_up(self) -> None:
        self._tidying = None
        give_back_memory()

    def _vet_stranger(self, tls: ssl.SSLObject) -> PeerId | str:
        peer = peer_of(tls)
        if peer is None:
            return "your certificate holds no key of a peer"
        if tls.selected_alpn_protocol() != PROTOCOL:
            return f"you do not speak {PROTOCOL}"
        return peer if self._pool.has_place(0) else "no place left"  # this one has its place already, if there is one


async def _first_word(sock: socket.socket, seconds: float) -> None:
    """Wait for the first byte: a stranger that says nothing costs a socket, and not the 300 KB of a TLS connection."""
    loop = asyncio.get_running_loop()
    spoke = asyncio.Event()
    loop.add_reader(sock.fileno(), spoke.set)
    try:
        async with asyncio.timeout(seconds):
            await spoke.wait()
        if not sock.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError
    except BaseException:
        loop.remove_reader(sock.fileno())
        sock.close()
        raise
    loop.remove_reader(sock.fileno())


def _cut(sock: socket.socket) -> None:
    """Shut a socket down. It belongs to asyncio, which closes it on seeing the end of the stream."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _let_go(error: OSError) -> None:
    """Break the cycle of an error, its traceback and asyncio's frames: 300 KB for each failed handshake until the next garbage
    collection, which is rare in a process with few new objects. A crowd of strangers would fill our memory."""
    error.__traceback__ = None


def _short(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no TLS"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # asyncio puts an address where the reason should be
    return error.strerror or str(error) or type(error).__name__


# Mutual TLS 1.3 in which the certificate *is* the peer: its key is the Ed25519 identity.
#
# The standard library can verify a client certificate against an authority only; it cannot accept an unknown self-signed
# one and ask later. So there is an authority whose private key everybody knows (`_AUTHORITY`, below: **no secret, and it
# proves nothing**). The proof is that a handshake needs the private key of the leaf. The leaf's key is read after the
# handshake, and whether that peer is welcome is decided then.
#
# The identity key thus signs two kinds of bytes. They cannot be confused: TLS 1.3 signs 64 spaces and a fixed text before
# its transcript (RFC 8446 §4.4.3), Troth's own messages start with `troth/signed`.


PROTOCOL = "troth/1"  # that both sides must speak inside TLS (ALPN)

# Public on purpose: anyone can derive it, and anyone may sign a leaf with it.
_AUTHORITY = Ed25519PrivateKey.from_private_bytes(sha256(b"troth: the authority that everybody is").digest())
_AUTHORITY_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "troth: no authority")])
# A wrong clock must not lock a peer out, and an identity does not expire: from the epoch, where machines without a
# battery wake up, until "no well-defined expiration date" (RFC 5280 §4.1.2.5).
_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def server_context(identity: Identity) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.num_tickets = 0  # every connection proves its key anew; nothing is resumed
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity)


def peer_of(connection: ssl.SSLObject | ssl.SSLSocket) -> PeerId | None:
    """The key that the other side proved to own; None if that is no key of a peer."""
    der = connection.getpeercert(binary_form=True)
    if der is None:
        return None
    try:
        public = x509.load_der_x509_certificate(der).public_key()
    except Exception:  # a stranger chose these bytes, and the parser has many ways to dislike them
        return None
    if not isinstance(public, Ed25519PublicKey):
        return None
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return PeerId(raw) if valid_peer(raw) else None


def leaf_certificate(peer: PeerId) -> bytes:
    """The certificate of a peer, in PEM. It contains nothing secret; anyone could have made it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer.hex())])
    return _signed(name, Ed25519PublicKey.from_public_bytes(peer), authority=False)


def _context(kind: int, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a peer is its key; where it was found does not matter
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET
    context.set_alpn_protocols([PROTOCOL])
    context.load_verify_locations(cadata=_authority_certificate().decode("ascii"))
    _load(context, identity)
    return context


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    """`ssl` reads keys from files only, so the file holds the key sealed under a password that never leaves memory."""
    password = os.urandom(32).hex().encode()
    with tempfile.NamedTemporaryFile(prefix="troth-") as file:  # mode 0600; gone when the block ends
        file.write(leaf_certificate(identity.peer) + identity.sealed_key(password))
        file.flush()
        context.load_cert_chain(file.name, password=password)


@lru_cache(maxsize=1)
def _authority_certificate() -> bytes:
    return _signed(_AUTHORITY_NAME, _AUTHORITY.public_key(), authority=True)


def _signed(subject: x509.Name, public: Ed25519PublicKey, *, authority: bool) -> bytes:
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    serial = int.from_bytes(sha256(b"troth/serial" + raw).digest()[:16], "big") | 1  # positive, at most 20 bytes
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY_NAME)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(_AUTHORITY.public_key()), critical=False)
        .sign(_AUTHORITY, None)
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
