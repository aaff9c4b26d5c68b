"""A peer's voice: files that do not grow by saying the same again, and a status that survives a bad look."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.network.manifest.plans import KEYS, PLAN
from troth.events.file import EVENTS, STATUS, decode_event, decode_status
from troth.events.kinds import Noted, Stepped
from troth.network.node.names import Names
from troth.network.node.options import NodeOptions
from troth.network.node.telling.teller import Eyes, Teller, Traffic
from troth.protocol.core.records import StepRecord


class Screen:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        raise AssertionError("there are no steps here")

    def note(self, text: str) -> None:
        self.notes.append(text)


class Sights:
    """What a peer sees; a look may fail."""

    fails = False
    failed = 0

    def eyes(self) -> Eyes:
        return Eyes(traffic=Traffic, links=self._links, place=lambda: None, waits_for=lambda: None)

    def _links(self, *_: object) -> tuple[()]:
        if self.fails:
            self.failed += 1
            raise RuntimeError("dictionary changed size during iteration")
        return ()


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < until, "nobody looks any more"
        time.sleep(0.02)


def teller(folder: Path, sights: Sights | None = None) -> tuple[Teller, Screen]:
    folder.mkdir(exist_ok=True)
    screen = Screen()
    seen = (sights or Sights()).eyes()
    return Teller(PLAN, KEYS[0], NodeOptions(folder, listen=""), screen, Names(PLAN.name_of), seen), screen


def test_a_note_that_is_repeated_is_in_the_stream_once_a_minute(tmp_path: Path) -> None:
    """A peer that waits says so every few seconds, for days if need be."""
    made, screen = teller(tmp_path)
    with made.life():
        for _ in range(1000):
            made.note("waits for bob")
        made.note("waits for carol")
    events = [decode_event(line) for line in (tmp_path / EVENTS).read_bytes().splitlines()]
    assert Counter(event.text for event in events if isinstance(event, Noted)) == {
        "waits for bob": 1,
        "waits for carol": 1,
    }
    assert len(screen.notes) == 1001, "the screen has its own measure"


@pytest.mark.parametrize("how", ["over", "error"])
def test_a_look_that_fails_costs_that_look(tmp_path: Path, how: str) -> None:
    sights = Sights()
    made, _ = teller(tmp_path, sights)

    def written() -> float:
        return decode_status((tmp_path / STATUS).read_bytes()).at

    def live() -> None:
        with made.life():
            sights.fails = True
            wait_until(lambda: sights.failed > 0)
            sights.fails = False
            before = written()
            wait_until(lambda: written() > before)
            sights.fails = True
            if how == "error":
                raise ZeroDivisionError("its own error")

    if how == "error":
        with pytest.raises(ZeroDivisionError, match="its own error"):
            live()
    else:
        live()
    assert decode_status((tmp_path / STATUS).read_bytes()).doing == how
