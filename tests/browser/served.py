"""A run's folder, and the page's own server in front of it: a test says what happens, and when."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from troth.events.file import EVENTS, EventFile, decode_event, encode_event, write_status
from troth.events.kinds import Event, Status
from troth.watch.folder import RunFolder
from troth.watch.server import PageServer


class ServedRun:
    """Events that a test adds, served on loopback. A context manager; a server dies with `stop`, and comes back with `start`."""

    def __init__(self, folder: Path, events: Iterable[Event] = ()) -> None:
        self.folder = folder
        self._file = EventFile(folder / EVENTS)
        self.add(*events)
        self._server: PageServer | None = None
        self._port: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._file.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        self._server = PageServer(RunFolder(self.folder), port=0 if self._port is None else self._port)
        self._port = self._server.port
        self._server.__enter__()

    def stop(self) -> None:
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None

    def add(self, *events: Event) -> None:
        for event in events:
            decode_event(encode_event(event))  # the server would pass over what is no event
            self._file.add(event)

    def tell(self, status: Status) -> None:
        write_status(self.folder, status)

    def replace(self, *events: Event) -> None:
        """Another run in the same folder."""
        self._file.close()
        self._file = EventFile(self.folder / EVENTS, fresh=True)
        self.add(*events)
