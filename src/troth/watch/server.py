"""The page's server: reads a run's folder and shows it, to a bounded number of viewers, in a process of its own.

GET /                the page; its files are below /page/
GET /events          server-sent events: `{"events": […], "total": N, "from": K}`, `status`, `end`, `reset`
GET /step?n=N        everything about one step
GET /evidence/NAME   the proof of a ban, as a file
"""

import asyncio
import errno
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from troth.errors import OperatorError
from troth.watch.folder import RunFolder
from troth.watch.live import FOR_GOOD, LiveRun, messages
from troth.watch.tail import Position

# A viewer's connection: one request, then one answer, within bounds that uvicorn alone does not set.


# Nothing but our own files, no inline script, no frame around us: text from peers is only ever text.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}


@dataclass(frozen=True)
class ViewerLimits:
    """What viewers may cost."""

    connections: int = 32
    streams: int = 16
    read_s: float = 10.0  # for a whole request
    write_s: float = 20.0  # without taking what was sent
    answer_s: float = 120.0  # for an answer that is no stream


class Connection(H11Protocol):
    """Ends by itself where the viewer is silent, stalls, or takes too long. Where all places are taken, the connection that has
    been silent for longest gives up its own."""

    def __init__(self, limits: ViewerLimits, silent: "dict[Connection, None]", **more: Any) -> None:
        """`silent`: all connections whose request is not there yet, the oldest first."""
        super().__init__(**more)
        self._limits, self._silent = limits, silent
        self._page, self.app = self.app, self._answer
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._silent[self] = None
        self._end_in(self._limits.read_s)  # in all: else a byte now and then would hold a place for ever
        if len(self.connections) > self._limits.connections:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            self.connections.discard(oldest)
            if oldest is self:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.", "Retry-After: 5\r\n")
            else:
                oldest.transport.abort()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._silent.pop(self, None)
        self._end_in(None)
        try:
            async with asyncio.timeout(None if scope["path"] == "/events" else self._limits.answer_s):
                await self._page(scope, receive, send)
        finally:
            self._end_in(self._limits.write_s)  # for the last of it

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_in(self._limits.write_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_in(self._limits.write_s if self.transport.is_closing() else None)

    def send_400_response(self, msg: str) -> None:
        self._say(HTTPStatus.BAD_REQUEST, msg)

    def shutdown(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._silent.pop(self, None)
        self._end_in(None)
        super().connection_lost(exc)

    def _end_in(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _say(self, status: HTTPStatus, text: str, more: str = "") -> None:
        """Answer a request that was not read."""
        lines = {**HEADERS, "Content-Type": "text/plain; charset=utf-8", "Content-Length": len(text)}
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\n{more}"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.transport.write(f"{head}\r\n{text}".encode("latin-1"))
        self.transport.close()


# Who may read the page. It says a lot about a run, so other web sites must not get at it through the operator's browser.
#
# Three ways in are shut. A site's script that fetches http://127.0.0.1: the browser names the site (`Origin`, `Sec-Fetch-
# Site`). A site whose own name suddenly means 127.0.0.1 (DNS rebinding): the request names that host. Another machine, where
# the page is served beyond this one: it needs the token.

MOST_HEAD = 16 << 10  # bytes of a request
MOST_HEADERS = 64

LEAST_TOKEN = 16
_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class AddressError(OperatorError):
    """An address or a token that the page cannot be served with; the message names the field."""


def new_token() -> str:
    return secrets.token_urlsafe(24)  # 192 bits


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_for(host: str, given: str | None) -> str | None:
    """The token to ask for: a new one where other machines could connect and none is given."""
    if given is None:
        return None if is_loopback(host) else new_token()
    if len(given) < LEAST_TOKEN or _TOKEN.fullmatch(given) is None:
        raise AddressError(
            f"`token` (TROTH_PAGE_TOKEN): at least {LEAST_TOKEN} letters, digits or ._~- are needed, so that nobody guesses it"
        )
    return given


@dataclass(frozen=True)
class Guard:
    """Decides about a request before anything else looks at it."""

    host: str
    port: int
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise AddressError(f"`host` {self.host}: other machines could connect, so a `token` is needed")

    @property
    def cookie(self) -> str:
        return f"troth-{self.port}"  # cookies of one host are shared by its ports

    def refuses(self, request: Request) -> Response | None:
        """The answer to a request that may not be; None for one that may."""
        if (status := _malformed(request)) is not None:
            return say(status)
        if request.method not in ("GET", "HEAD"):
            return say(HTTPStatus.METHOD_NOT_ALLOWED, "This page is only read.", Allow="GET, HEAD")
        if is_loopback(self.host) and not self._names_us(request.headers.get("host", "")):
            return say(HTTPStatus.MISDIRECTED_REQUEST, "This address is not the page's: open it as it was printed.")
        if self._from_elsewhere(request):
            return say(HTTPStatus.FORBIDDEN, "Other sites may not read this page.")
        return None if self.token is None else self._without_token(request, self.token)

    def _without_token(self, request: Request, token: str) -> Response | None:
        given = request.query_params.get("token") if request.scope["path"] == "/" else None
        if given is None:
            ticket = request.cookies.get(self.cookie, "")
            if hmac.compare_digest(ticket.encode(), _ticket(token).encode()):
                return None
            return say(
                HTTPStatus.UNAUTHORIZED,
                "This page asks for a token: open the whole address as it was printed, ?token=…",
            )
        if not hmac.compare_digest(given.encode(), token.encode()):
            return say(HTTPStatus.UNAUTHORIZED, "This is not the token: open the whole address as it was printed.")
        cookie = f"{self.cookie}={_ticket(token)}; HttpOnly; SameSite=Strict; Path=/"
        # The token leaves the address bar.
        return say(HTTPStatus.SEE_OTHER, "Welcome.", Location="/", Set_Cookie=cookie)

    def _names_us(self, host: str) -> bool:
        names = {*_LOCAL, f"[{self.host}]" if ":" in self.host else self.host}
        return host.lower() in {f"{name}:{self.port}" for name in names} or (self.port == 80 and host.lower() in names)

    def _from_elsewhere(self, request: Request) -> bool:
        """Whether a page of another site asks. Following a link to the page is no harm: the other site does not see it."""
        site, origin = request.headers.get("sec-fetch-site", ""), request.headers.get("origin", "")
        host = request.headers.get("host", "").lower()
        if origin and origin.lower() not in (f"http://{host}", f"https://{host}"):  # the latter through a proxy
            return True
        if site in ("", "same-origin", "none"):
            return False
        opens = (request.headers.get("sec-fetch-mode", ""), request.headers.get("sec-fetch-dest", "")) == (
            "navigate",
            "document",
        )
        return not (opens and request.scope["path"] == "/")


def say(status: HTTPStatus, text: str = "", **headers: str) -> Response:
    """An answer of one line."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return PlainTextResponse(f"{text or status.phrase}\n", status, named)


def _malformed(request: Request) -> HTTPStatus | None:
    """Why a request is none that a browser would send here, though it is HTTP."""
    target, headers = request.scope["raw_path"], request.headers.raw
    size = len(target) + len(request.scope["query_string"]) + sum(len(name) + len(value) for name, value in headers)
    if size > MOST_HEAD or len(headers) > MOST_HEADERS:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    if request.headers.get("content-length", "") not in ("", "0") or "transfer-encoding" in request.headers:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    twice = any(len(request.headers.getlist(name)) > 1 for name in ("host", "origin", "cookie"))  # which would count?
    absolute = not target.startswith(b"/") or target.startswith(b"//")
    return HTTPStatus.BAD_REQUEST if twice or absolute or request.scope["http_version"] not in ("1.0", "1.1") else None


def _ticket(token: str) -> str:
    """What the browser keeps: shows that it had the token, and does not tell it."""
    return hashlib.sha256(b"troth/page ticket/1 " + token.encode()).hexdigest()


# The page's own files, read once: a table from paths to contents, so that no path of a request ever meets the disk.

PAGE = Path(__file__).parent / "page"
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".txt": "text/plain"}


@dataclass(frozen=True)
class Asset:
    content: bytes
    kind: str


def assets() -> dict[str, Asset]:
    """All of them, by the path of a request."""
    files = [path for path in PAGE.rglob("*") if path.suffix in _TYPES]
    found = {
        f"/page/{path.relative_to(PAGE).as_posix()}": Asset(path.read_bytes(), _TYPES[path.suffix]) for path in files
    }
    return found | {"/": found.pop("/page/index.html")}


HOST, PORT, PORTS = "127.0.0.1", 8420, 20  # without a port given: the first free one of so many
_MOST_CATCH_UP_S = 10.0  # with a file at which nobody has looked for long
_JSON = "application/json"
_EVENT_STREAM = "text/event-stream"


class PageServer:
    """Serves a folder from `__enter__` on, on a thread. Use as a context manager."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        host: str = HOST,
        port: int | None = None,
        token: str | None = None,
        ignored: str = "",
        limits: ViewerLimits | None = None,
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
        self._limits = limits = limits or ViewerLimits()
        self._files = assets() if files is None else files
        self._run = LiveRun(folder, ignored=ignored)
        self.streams = 0
        routes = [
            Route("/events", self._events),
            Route("/step", self._step),
            Route("/evidence/{name}", self._evidence),
            Route("/{path:path}", self._file),
        ]
        self._routes = Starlette(routes=routes)
        config = uvicorn.Config(
            self._answer,
            http=partial(Connection, limits, {}),  # type: ignore[arg-type]  # it is only ever called
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="debug" if os.environ.get("TROTH_TRACEBACK") else "critical",  # viewers that leave are no news
            access_log=False,
            proxy_headers=False,  # the viewer's word is not taken for where it is
            server_header=False,
            date_header=False,
            headers=list(HEADERS.items()),
            h11_max_incomplete_event_size=MOST_HEAD,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.server_state.default_headers = config.encoded_headers  # from the first answer on
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="serve the page", daemon=True
        )

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
        until = time.monotonic() + _MOST_CATCH_UP_S
        self._run.look()
        while not self._run.tail.complete and time.monotonic() < until:
            self._run.look()
        return self._run.how_it_ended in FOR_GOOD

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()  # and with it the streams
        self._server.should_exit = True
        self._thread.join()

    # Answers

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.guard.refuses(Request(scope)) or self._routes
        await answer(scope, receive, send)

    def _file(self, request: Request) -> Response:
        asset = self._files.get(request.scope["path"])
        return say(HTTPStatus.NOT_FOUND) if asset is None else Response(asset.content, media_type=asset.kind)

    def _step(self, request: Request) -> Response:
        number = request.query_params.get("n", "")
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            return say(HTTPStatus.BAD_REQUEST, "n: the number of a step")
        self._run.look()
        event = self._run.tail.step(int(number))
        return say(HTTPStatus.NOT_FOUND) if event is None else Response(msgspec.json.encode(event), media_type=_JSON)

    def _evidence(self, request: Request) -> Response:
        name = request.path_params["name"]
        file = self._run.folder.evidence(name)
        if file is None:
            return say(HTTPStatus.NOT_FOUND)
        size = os.fstat(file.fileno()).st_size
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(size)}
        if request.method == "HEAD":
            file.close()
            return Response(headers=headers, media_type=_JSON)
        return StreamingResponse(_pieces(file, size), headers=headers, media_type=_JSON)

    async def _events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type=_EVENT_STREAM)
        await run_in_threadpool(self._run.look)
        there = self._run.tail.position
        begin = Position.read(request.headers.get("last-event-id") or request.query_params.get("from", ""))
        if begin is not None and not begin.stream:  # a bare number: of the run that is there
            begin = Position(begin.count, there.stream)
        if self._run.how_it_ended in FOR_GOOD and begin == there:
            return Response(status_code=HTTPStatus.NO_CONTENT)  # do not come back
        if self.streams >= self._limits.streams:
            return say(HTTPStatus.SERVICE_UNAVAILABLE, "Too many viewers at a time.", Retry_After="5")
        self.streams += 1
        return _Viewing(self, messages(self._run, begin))


class _Viewing(StreamingResponse):
    """A stream of events, and a place among the viewers for as long as it lasts."""

    def __init__(self, server: PageServer, stream: Iterator[bytes]) -> None:
        super().__init__(stream, headers={"X-Accel-Buffering": "no"}, media_type=_EVENT_STREAM)
        self._page = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._page.streams -= 1


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Content of a file, no longer than was said: it may have grown."""
    with file:
        while size > 0 and (piece := file.read(min(size, 1 << 16))):
            size -= len(piece)
            yield piece


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
        raise AddressError(f"`port`: {ports[0]} to {ports[-1]} are all in use; choose another")
    raise AddressError(f"cannot serve the page at `host` {host}, `port` {ports[0]}: {why}; choose others")
