"""As much HTTP as the page needs: one request a connection, read within bounds of size and time; and answers with strict headers.

The standard library's server would read a hundred headers of 64 KiB each, and wait for every single byte anew.
"""

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

MOST_HEAD = 16 << 10  # bytes of a request
MOST_HEADERS = 64

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
_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")


class BadRequestError(Exception):
    """A request that is none, or too large a one; the answer is its status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case

    def header(self, name: str) -> str:
        return self.headers.get(name, "")


@dataclass(frozen=True)
class Response:
    status: HTTPStatus
    content: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, head_only: bool = False) -> bytes:
        length = {} if self.kind.startswith("text/event-stream") else {"Content-Length": str(len(self.content))}
        lines = {**HEADERS, "Content-Type": self.kind, **length, **self.headers}
        head = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return head.encode("latin-1") + b"\r\n" + (b"" if head_only else self.content)


def say(status: HTTPStatus, text: str = "", **headers: str) -> Response:
    """An answer of one line."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, f"{text or status.phrase}\n".encode(), headers=named)


def read_request(connection: socket.socket, seconds: float) -> Request | None:
    """Read a request; None if the other side sent nothing. `TimeoutError` if it takes longer in all: a client that sends a byte
    now and then would hold its place for ever."""
    until = time.monotonic() + seconds
    head = b""
    while b"\r\n\r\n" not in head:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(4096)
        if not piece:
            if head:
                raise BadRequestError(HTTPStatus.BAD_REQUEST)
            return None
        head += piece
        if len(head) > MOST_HEAD:
            raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    return parse_request(head.partition(b"\r\n\r\n")[0])


def parse_request(head: bytes) -> Request:
    first, *rest = head.split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    if len(rest) > MOST_HEADERS:
        raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    headers: dict[str, str] = {}
    for one in rest:
        found = _HEADER.fullmatch(one)
        name = "" if found is None else found[1].decode().lower()
        if found is None or (name in headers and name in ("host", "origin", "cookie")):  # which of two would count?
            raise BadRequestError(HTTPStatus.BAD_REQUEST)
        headers[name] = found[2].decode("latin-1")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    try:
        target = urlsplit(line[2].decode("ascii"))
        query = parse_qs(target.query, keep_blank_values=True, max_num_fields=16, errors="replace")
    except ValueError as error:
        raise BadRequestError(HTTPStatus.BAD_REQUEST) from error
    if target.netloc:  # "//host/…"
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    return Request(line[1].decode(), target.path, {name: values[-1] for name, values in query.items()}, headers)
