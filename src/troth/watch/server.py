"""The page's server: reads a run's folder and shows it, to a bounded number of viewers, in a process of its own.

GET /                the page; its files are below /page/
GET /events          server-sent events: `{"events": […], "total": N, "from": K}`, `status`, `end`, `reset`
GET /step?n=N        everything about one step
GET /evidence/NAME   the proof of a ban, as a file
"""

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from troth.watch.assets import Asset, assets
from troth.watch.folder import RunFolder
from troth.watch.guard import AddressError, Guard, token_for
from troth.watch.http import BadRequestError, Request, Response, read_request, say
from troth.watch.live import LiveRun
from troth.watch.stream import FOR_GOOD, HEAD, Stream
from troth.watch.tail import Position

HOST, PORT, PORTS = "127.0.0.1", 8420, 20  # without a port given: the first free one of so many
_JSON = "application/json; charset=utf-8"


@dataclass(frozen=True)
class Limits:
    """What viewers may cost."""

    connections: int = 32
    streams: int = 16
    read_s: float = 10.0  # for a whole request
    write_s: float = 20.0  # for an answer, or a message of a stream
    file_s: float = 120.0  # for a file of evidence


class PageServer:
    """Serves a folder from `__enter__` on, on threads. Use as a context manager."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        host: str = HOST,
        port: int | None = None,
        token: str | None = None,
        ignored: str = "",
        limits: Limits | None = None,
        files: dict[str, Asset] | None = None,
    ) -> None:
        """`ignored`: see `LiveRun`."""
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        try:
            self.guard = Guard(host, self.port, token_for(host, token))
        except AddressError:
            self._socket.close()
            raise
        self._limits = limits = limits or Limits()
        self._files = assets() if files is None else files
        self._run = LiveRun(folder, ignored=ignored)
        self._places = threading.Semaphore(limits.connections)
        self._streams = threading.Semaphore(limits.streams)
        self._reading = _Reading()
        self._over = False
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)

    @property
    def address(self) -> str:
        """What to open; with the token, if there is one."""
        host = self.guard.host
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        token = "" if self.guard.token is None else f"?token={self.guard.token}"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{token}"

    @property
    def over(self) -> bool:
        """Whether the run is, and there is nothing more to come."""
        return self._run.how_it_ended in FOR_GOOD

    def __enter__(self) -> Self:
        self._run.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._socket.close()
        self._thread.join()
        self._run.__exit__(kind, error, trace)

    # Connections

    def _accept(self) -> None:
        while not self._over:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if not self._over:
                    time.sleep(0.05)  # no file handle left: others will close theirs
                continue
            if self._has_place():
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            else:
                _refuse(connection)

    def _has_place(self) -> bool:
        """Take one of the places; where there is none, whoever has been silent for longest has to give up its own."""
        if self._places.acquire(blocking=False):
            return True
        return self._reading.drop_oldest() and self._places.acquire(timeout=0.25)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    with self._reading.during(connection):
                        request = read_request(connection, self._limits.read_s)
                except BadRequestError as bad:
                    _send(connection, say(bad.status).encode(), self._limits.write_s)
                    return
                if request is not None:
                    self._answer(connection, request)
        finally:
            self._places.release()

    # Answers

    def _answer(self, connection: socket.socket, request: Request) -> None:
        head_only = request.method == "HEAD"
        response = self._refusal(request)
        if response is None and request.path == "/events" and not head_only:
            self._stream(connection, request)
            return
        if response is None and request.path.startswith("/evidence/"):
            name = request.path.removeprefix("/evidence/")
            file = self._run.folder.evidence(name)
            if file is not None:
                with file:
                    _send_file(connection, file, name, head_only=head_only, seconds=self._limits.file_s)
                return
        if response is None:
            response = self._plain(request)
        _send(connection, response.encode(head_only=head_only), self._limits.write_s)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return say(HTTPStatus.METHOD_NOT_ALLOWED, "This page is only read.", Allow="GET, HEAD")
        return self.guard.refuses(request)

    def _plain(self, request: Request) -> Response:
        if (asset := self._files.get(request.path)) is not None:
            return Response(HTTPStatus.OK, asset.content, asset.kind)
        if request.path == "/events":
            return HEAD
        if request.path == "/step":
            number = request.query.get("n", "")
            if not (number.isascii() and number.isdecimal() and len(number) < 20):
                return say(HTTPStatus.BAD_REQUEST, "n: the number of a step")
            if (event := self._run.tail.step(int(number))) is not None:
                return Response(HTTPStatus.OK, msgspec.json.encode(event), _JSON)
        return say(HTTPStatus.NOT_FOUND)

    def _stream(self, connection: socket.socket, request: Request) -> None:
        begin = Position.read(request.header("last-event-id") or request.query.get("from", ""))
        if begin is not None and not begin.stream:  # a bare number: of the run that is there
            begin = Position(begin.count, self._run.tail.position.stream)
        if self._run.how_it_ended in FOR_GOOD and begin == self._run.tail.position:
            _send(connection, Response(HTTPStatus.NO_CONTENT).encode(), self._limits.write_s)  # do not come back
            return
        if not self._streams.acquire(blocking=False):
            busy = say(HTTPStatus.SERVICE_UNAVAILABLE, "Too many viewers at a time.", Retry_After="5")
            _send(connection, busy.encode(), self._limits.write_s)
            return
        self._run.viewer(+1)
        try:
            _send(connection, HEAD.encode(), self._limits.write_s)
            Stream(connection, self._run, begin, self._limits.write_s).serve()
        finally:
            self._run.viewer(-1)
            self._streams.release()


class _Reading:
    """Connections whose request is not there yet, the oldest first."""

    def __init__(self) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    @contextmanager
    def during(self, connection: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open[connection] = None
        try:
            yield
        finally:
            with self._lock:
                self._open.pop(connection, None)

    def drop_oldest(self) -> bool:
        """False if there is none."""
        with self._lock:
            oldest = next(iter(self._open), None)
            if oldest is None:
                return False
            del self._open[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
            return True


def _refuse(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.setblocking(False)  # it fits into the system's buffer, or is not said
        connection.send(say(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.", Retry_After="5").encode())


def _send(connection: socket.socket, raw: bytes, seconds: float) -> None:
    """Raises `TimeoutError` if the other side does not take all of it in that time."""
    connection.settimeout(max(seconds, 0.001))
    connection.sendall(raw)


def _send_file(connection: socket.socket, file: BinaryIO, name: str, *, head_only: bool, seconds: float) -> None:
    until = time.monotonic() + seconds
    size = os.fstat(file.fileno()).st_size
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(size)}
    _send(connection, Response(HTTPStatus.OK, kind=_JSON, headers=headers).encode(head_only=True), seconds)
    while not head_only and size > 0 and (piece := file.read(min(size, 1 << 16))):
        _send(connection, piece, until - time.monotonic())
        size -= len(piece)


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens: on this port, or else on the first free one."""
    ports = range(PORT, PORT + PORTS) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    why = ""
    for one in ports:
        try:
            return socket.create_server((host.strip("[]"), one), family=family, backlog=64)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
                break
    if port is None and why == os.strerror(errno.EADDRINUSE):
        raise AddressError(f"port: {ports[0]} to {ports[-1]} are all in use; choose another")
    raise AddressError(f"cannot serve the page at `host` {host}, `port` {ports[0]}: {why}; choose others")
