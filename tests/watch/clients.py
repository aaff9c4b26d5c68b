"""Viewers made of bare sockets, so that they can misbehave."""

import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any, NamedTuple

from troth.watch.server import PageServer

PATIENCE_S = 20.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes


class Message(NamedTuple):
    event: str
    id: str
    data: Any


class Client:
    def __init__(self, server: PageServer) -> None:
        self.server = server
        self.viewers: list[Viewer] = []
        self.host = f"127.0.0.1:{server.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S)

    def close(self) -> None:
        for viewer in self.viewers:
            viewer.close()

    def raw(self, request: bytes) -> bytes:
        """Send bytes, and read to the end."""
        with self.connect() as connection:
            try:
                connection.sendall(request)
                return read_all(connection)
            except ConnectionError:
                return b""

    def ask(self, path: str, method: str = "GET", *, host: str | None = None, **headers: str) -> Answer:
        return answer(self.raw(request(path, method, host=host or self.host, **headers)))

    def stream(self, path: str = "/events", *, host: str | None = None, **headers: str) -> "Viewer":
        connection = self.connect()
        connection.sendall(request(path, host=host or self.host, **headers))
        self.viewers.append(Viewer(connection))
        return self.viewers[-1]


def request(path: str, method: str = "GET", *, host: str, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def answer(raw: bytes) -> Answer:
    head, _, content = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(first.split()[1]), headers, content)


class Viewer:
    """Reads a stream, message by message."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._stream = HTTPResponse(connection)
        self._stream.begin()
        self.head = Answer(self._stream.status, {name.lower(): value for name, value in self._stream.getheaders()}, b"")

    def messages(self) -> Iterator[Message]:
        """Until the server closes."""
        fields: dict[str, str] = {}
        for raw in self._stream:
            line = raw.decode().rstrip("\n")
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                yield Message(fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"]))
                fields = {}
            else:
                fields = {}

    def next(self, kind: str = "") -> Message:
        """The next message of that kind."""
        return next(message for message in self.messages() if message.event == kind)

    def events(self, count: int) -> list[dict[str, Any]]:
        """So many events, in as many messages as they come."""
        found: list[dict[str, Any]] = []
        until = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < until:
            found += self.next().data["events"]
        return found

    def close(self) -> None:
        self._stream.close()
        self.connection.close()
