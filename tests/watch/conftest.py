"""A server on a port of its own, and sockets to talk to it with."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.watch.clients import Client
from troth.watch.folder import RunFolder
from troth.watch.server import Asset, PageServer, ViewerLimits

FILES = {
    "/": Asset(b"<!doctype html>the page", "text/html"),
    "/page/app/main.js": Asset(b"go()", "text/javascript"),
}
Serve = Callable[..., Client]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve()` serves `tmp_path`; arguments are those of `PageServer`, and limits by their names."""
    with ExitStack() as stack:

        def start(
            folder: Path = tmp_path, *, token: str | None = None, host: str = "127.0.0.1", **limits: Any
        ) -> Client:
            server = PageServer(
                RunFolder(folder),
                host=host,
                port=0,
                token=token,
                limits=ViewerLimits(**limits),
                files=dict(FILES),
            )
            stack.enter_context(server)
            return stack.enter_context(closing(Client(server)))

        yield start


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port
