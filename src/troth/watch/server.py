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
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import BinaryIO, Self

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from troth.watch.assets import Asset, assets
from troth.watch.connection import HEADERS, Connection, Limits
from troth.watch.folder import RunFolder
from troth.watch.guard import MOST_HEAD, AddressError, Guard, say, token_for
from troth.watch.live import FOR_GOOD, LiveRun
from troth.watch.stream import Stream
from troth.watch.tail import Position

HOST, PORT, PORTS = "127.0.0.1", 8420, 20  # without a port given: the first free one of so many
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
        self._streams = 0
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
        return self._run.how_it_ended in FOR_GOOD

    def __enter__(self) -> Self:
        self._run.__enter__()
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
        there = self._run.tail.position
        begin = Position.read(request.headers.get("last-event-id") or request.query_params.get("from", ""))
        if begin is not None and not begin.stream:  # a bare number: of the run that is there
            begin = Position(begin.count, there.stream)
        if self._run.how_it_ended in FOR_GOOD and begin == there:
            return Response(status_code=HTTPStatus.NO_CONTENT)  # do not come back
        if self._streams >= self._limits.streams:
            return say(HTTPStatus.SERVICE_UNAVAILABLE, "Too many viewers at a time.", Retry_After="5")
        self.viewer(+1)
        return _Viewing(self, Stream(self._run, begin))

    def viewer(self, more: int) -> None:
        self._streams += more
        self._run.viewer(more)


class _Viewing(StreamingResponse):
    """A stream of events, and a place among the viewers for as long as it lasts."""

    def __init__(self, server: PageServer, stream: Stream) -> None:
        super().__init__(stream, headers={"X-Accel-Buffering": "no"}, media_type=_EVENT_STREAM)
        self._page = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._page.viewer(-1)


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
        raise AddressError(f"port: {ports[0]} to {ports[-1]} are all in use; choose another")
    raise AddressError(f"cannot serve the page at `host` {host}, `port` {ports[0]}: {why}; choose others")
