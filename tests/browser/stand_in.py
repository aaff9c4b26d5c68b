"""A server of the page, as small as can be: what a browser test needs to say what the page hears, and when."""

import json
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import troth.watch

PAGE = Path(troth.watch.__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}
HEAVY = ("owners", "phases")


class StandIn:
    """Serves events that a test adds, whatever they are. A context manager."""

    def __init__(self, events: Iterable[dict[str, Any]] = (), *, port: int = 0) -> None:
        self.events: list[dict[str, Any]] = list(events)
        self.status: dict[str, Any] | None = None
        self.over = False
        self._changed = threading.Condition()
        self._open = True
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, *events: dict[str, Any]) -> None:
        with self._changed:
            self.events.extend(events)
            self._changed.notify_all()

    def tell(self, status: dict[str, Any]) -> None:
        with self._changed:
            self.status = status
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/events":
                    stand_in._stream(self)
                elif parts.path == "/step":
                    wanted = int(parse_qs(parts.query)["n"][0])
                    found = [one for one in stand_in.events if one.get("step") == wanted]
                    stand_in._send(self, json.dumps(found[-1]).encode() if found else None, "application/json")
                else:
                    name = "index.html" if parts.path == "/" else parts.path.removeprefix("/page/")
                    path = PAGE / name
                    known = path.is_file() and PAGE in path.resolve().parents
                    stand_in._send(self, path.read_bytes() if known else None, TYPES.get(path.suffix, "text/plain"))

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, body: bytes | None, kind: str) -> None:
        request.send_response(200 if body is not None else 404)
        request.send_header("Content-Type", f"{kind}; charset=utf-8")
        request.send_header("Content-Security-Policy", POLICY)
        request.send_header("X-Content-Type-Options", "nosniff")
        request.send_header("Referrer-Policy", "no-referrer")
        request.send_header("Content-Length", str(len(body or b"")))
        request.end_headers()
        request.wfile.write(body or b"")

    def _stream(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        sent = int(request.headers.get("Last-Event-ID") or 0)
        told: dict[str, Any] | None = None
        try:
            request.wfile.write(b"retry: 200\n\n")
            while self._open:
                with self._changed:
                    batch = self.events[sent : sent + 500]
                    total, status, over = len(self.events), self.status, self.over
                    if not batch and status is told and not over and self._open:
                        self._changed.wait(0.5)
                        continue
                if batch:
                    light = [{key: value for key, value in one.items() if key not in HEAVY} for one in batch]
                    sent += len(batch)
                    data = json.dumps({"events": light, "total": total})
                    request.wfile.write(f"id: {sent}\ndata: {data}\n\n".encode())
                if status is not told:
                    request.wfile.write(f"event: status\ndata: {json.dumps(status)}\n\n".encode())
                    told = status
                if over and sent >= total:
                    request.wfile.write(b"event: end\ndata: {}\n\n")
                    return
        except OSError:
            pass  # the viewer went away


def serve_for(seconds: float, server: StandIn) -> None:
    """Keep it up for a while: for looking at the page by hand."""
    with server:
        print(server.url, flush=True)
        time.sleep(seconds)
