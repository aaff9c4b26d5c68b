"""A viewer's connection: one request, then one answer, within bounds that uvicorn alone does not set."""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

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
class Limits:
    """What viewers may cost."""

    connections: int = 32
    streams: int = 16
    read_s: float = 10.0  # for a whole request
    write_s: float = 20.0  # without taking what was sent
    answer_s: float = 120.0  # for an answer that is no stream


class Connection(H11Protocol):
    """Ends by itself where the viewer is silent, stalls, or takes too long. Where all places are taken, the connection that has
    been silent for longest gives up its own."""

    def __init__(self, limits: Limits, silent: "dict[Connection, None]", **more: Any) -> None:
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
