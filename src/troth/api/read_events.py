"""`troth.read_events`: a run's stream of events, for scripts and notebooks."""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from troth.errors import OperatorError
from troth.events.file import MOST_LINE, EventError, decode_event, stream_in
from troth.events.kinds import Event


class EventsError(OperatorError):
    """A folder without a stream of events that this Troth reads; the message says why."""


def read_events(run: str | PathLike[str]) -> Iterator[Event]:
    """The events of a run so far, from its folder (or its `events.jsonl`): of a member, a swarm, or a simulation.

    >>> for event in troth.read_events("runs/demo"):  # doctest: +SKIP
    ...     if isinstance(event, troth.events.Stepped):
    ...         print(event.step, event.loss, event.banned)

    Lines that are torn, as after a power cut, are passed over.
    """
    path = Path(run)
    path = stream_in(path) if path.is_dir() else path
    return _events(path)


def _events(path: Path) -> Iterator[Event]:
    try:
        with path.open("rb") as file:
            for number in range(1 << 62):
                line = file.readline(MOST_LINE + 1)
                if not line:
                    return
                try:
                    yield decode_event(line)
                except EventError as error:
                    if number == 0:
                        raise EventsError(f"{path} is no stream of events: {error}") from error
    except OSError as error:
        raise EventsError(f"cannot read {path}: {error.strerror}; name the folder of a run") from error
