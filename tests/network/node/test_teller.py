"""A peer's voice: files that do not grow by saying the same again, and a status that survives a bad look."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.network.manifest.plans import KEYS, PLAN
from troth.crypto import PeerId, Slot
from troth.events.file import EVENTS, STATUS, EventFile, decode_event, decode_status
from troth.events.kinds import Noted, Stepped
from troth.network.node.founding import PeerNames
from troth.network.node.options import NodeOptions
from troth.network.node.telling import BytesPerParameter, Eyes, StepProgress, Teller, Traffic
from troth.protocol.core.records import StepRecord
from troth.protocol.wire.messages import Phase


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


def test_a_peer_that_comes_back_knows_how_far_it_was(tmp_path: Path) -> None:
    """Its status and its metrics do not say step 0, members 0 until the first step: that looks like lost progress."""
    before = EventFile(tmp_path / EVENTS)
    for step in range(811, 815):
        moved = step < 813
        before.add(
            Stepped(step=step, updates=min(step, 812), of=9, members=4, moved=moved, metrics={}, at=1000.0 + 2 * step)
        )
    before.close()
    made, _ = teller(tmp_path)
    with made.life():
        status = decode_status((tmp_path / STATUS).read_bytes())
    assert (status.doing, status.step, status.updates, status.members) == ("meeting", 815, 812, 4)
    assert status.since == 1000.0 + 2 * 812, "the model has not moved since then"
    assert status.left_s is None
    assert made.paused is None, "what the last step of another life said is not the present"


@pytest.mark.parametrize(("unheard", "kept"), [((), 0), ((KEYS[1],), 1)])
def test_waits_for_nobody_are_not_kept_in_the_stream(tmp_path: Path, unheard: tuple[PeerId, ...], kept: int) -> None:
    """Every long step has some, and the page's notes held little else."""
    place = Slot(PLAN.run.id, 7, Phase.CLIP), frozenset(unheard)
    made, screen = teller(tmp_path, eyes=replace(Sights().eyes(), place=lambda: place, waits_for=lambda: "waits"))
    made.quiet_s = 0.05
    with made.life(), made.watching():
        wait_until(lambda: "waits" in screen.notes)
    events = [decode_event(line) for line in (tmp_path / EVENTS).read_bytes().splitlines()]
    assert sum(isinstance(event, Noted) for event in events) == kept


@pytest.mark.parametrize(("usual_s", "doing"), [(1.0, "waiting"), (60.0, "training")])
def test_a_long_step_is_no_wait_where_steps_are_long(tmp_path: Path, usual_s: float, doing: str) -> None:
    before = EventFile(tmp_path / EVENTS)
    for step in range(4):
        at = 1000.0 + usual_s * step
        before.add(Stepped(step=step, updates=step + 1, of=9, members=4, moved=True, metrics={}, at=at))
    before.close()
    place = Slot(PLAN.run.id, 4, Phase.CLIP), frozenset[PeerId]()
    made, _ = teller(tmp_path, eyes=replace(Sights().eyes(), place=lambda: place))
    made._lived_at -= 10.0
    with made.life():
        assert decode_status((tmp_path / STATUS).read_bytes()).doing == doing


def test_the_time_that_is_left_follows_from_the_usual_step() -> None:
    """Waits and pauses aside; nothing is said before there is anything to go by."""

    def step(number: int, at: float, *, moved: bool = True) -> Stepped:
        return Stepped(step=number, updates=number, of=99, members=4, at=at, moved=moved)

    progress = StepProgress([step(0, 100.0)])
    assert (progress.usual_s, progress.left_s(7)) == (None, None)
    for number, at in enumerate((102.0, 104.0, 190.0, 192.0), 1):
        progress.stepped(step(number, at))
    progress.stepped(step(5, 900.0, moved=False))
    assert (progress.usual_s, progress.left_s(7), progress.moved_at) == (2.0, 14.0, 192.0)


def test_bytes_are_counted_for_each_parameter_and_gradient_of_the_last_steps() -> None:
    """Whatever passed before the first step has ended, the history for instance, is none of them."""
    passed = BytesPerParameter(1000 * 2)  # of so many parameters, with two local steps
    assert passed.stepped(Traffic(received_bytes=10**9, sent_bytes=10**9)) == {}
    told = [
        passed.stepped(Traffic(received_bytes=10**9 + 8000 * step, sent_bytes=10**9 + 1000 * step**2))
        for step in range(1, 31)
    ]
    assert told[0] == {"received_per_parameter": 4.0, "sent_per_parameter": 0.5}
    assert told[-1] == {"received_per_parameter": 4.0, "sent_per_parameter": (30**2 - 10**2) / 20 / 2}


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < until, "nobody looks any more"
        time.sleep(0.02)


def teller(folder: Path, sights: Sights | None = None, eyes: Eyes | None = None) -> tuple[Teller, Screen]:
    folder.mkdir(exist_ok=True)
    screen = Screen()
    seen = eyes or (sights or Sights()).eyes()
    return Teller(PLAN, KEYS[0], NodeOptions(folder, listen=""), screen, PeerNames(PLAN.name_of), seen), screen


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


@pytest.mark.long
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
