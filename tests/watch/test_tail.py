"""The file may grow, be torn, hold garbage, or be another run's: a tail tells the events that are there, each once."""

import errno
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watch.made_events import began, stepped, whole_run, write
from troth.events.file import EVENTS, MOST_LINE, encode_event
from troth.events.kinds import Ended, Event, Noted
from troth.watch import tail as tail_module
from troth.watch.folder import RunFolder
from troth.watch.server import PageServer
from troth.watch.tail import Position

_tails: list[tail_module.EventTail] = []


class EventTail(tail_module.EventTail):
    """Closed after the test, at the latest."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _tails.append(self)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _tails:
        _tails.pop().close()


def all_events(tail: EventTail) -> list[Event]:
    tail.refresh()
    found: list[Event] = []
    at = Position(0, tail.position.stream)
    while True:
        events, at = tail.events(at, 3)
        if not events:
            return found
        found += events


def test_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    assert not tail.refresh()
    assert tail.position == Position(0)
    write(tmp_path, began(), stepped(0))
    assert tail.refresh()
    assert all_events(tail) == [began(), stepped(0)]


def test_a_file_that_grows(tmp_path: Path) -> None:
    tail, run = EventTail(tmp_path), whole_run(10)
    for number, event in enumerate(run):
        write(tmp_path, event, fresh=number == 0)
        assert tail.refresh()
        assert not tail.refresh()
        assert tail.position.count == number + 1
    assert all_events(tail) == run
    assert tail.step(4) == stepped(4, of=10)
    assert tail.step(11) is None
    assert tail.step(-1) is None
    assert tail.step(1 << 70) is None


def test_half_a_line_does_not_count_until_it_is_whole(tmp_path: Path) -> None:
    line = encode_event(began())
    path = tmp_path / EVENTS
    tail = EventTail(tmp_path)
    with path.open("ab", buffering=0) as file:
        for byte in line[:-1]:
            file.write(bytes([byte]))
            tail.refresh()
            assert tail.position.count == 0
        file.write(line[-1:])
    assert all_events(tail) == [began()]
    assert tail.skipped == 0


def test_a_torn_line_is_passed_over_when_the_writer_goes_on(tmp_path: Path) -> None:
    write(tmp_path, began())
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(encode_event(stepped(0))[:40])  # a crash
    tail = EventTail(tmp_path)
    assert all_events(tail) == [began()]
    write(tmp_path, stepped(1), fresh=False)
    assert all_events(tail) == [began(), stepped(1)]
    assert tail.skipped == 1


def test_garbage_is_skipped_and_counted(tmp_path: Path) -> None:
    garbage = [
        b"no json",
        b'{"event":"unknown"}',
        b"\xff\xfe\x00",
        b'{"event":"step","step":"x"}',
        b"[" * 5000,
        b"",
        b"  ",
    ]
    content = b"\n".join([encode_event(began())[:-1], *garbage, encode_event(stepped(0))])
    (tmp_path / EVENTS).write_bytes(content)
    tail = EventTail(tmp_path)
    assert all_events(tail) == [began(), stepped(0)]
    assert tail.skipped == 5  # empty lines are nothing


def test_a_line_that_is_too_long_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    with (tmp_path / EVENTS).open("wb") as file:
        file.write(encode_event(began()))
        for _ in range(30):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + encode_event(stepped(0)))
    tail = EventTail(tmp_path)
    tracemalloc.start()
    tail.refresh()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all_events(tail) == [began(), stepped(0)]
    assert tail.skipped == 1
    assert most < 3 * MOST_LINE


def test_the_end_of_a_line_that_is_too_long_is_no_event(tmp_path: Path) -> None:
    """Whoever can make one event long, by a name or a note, must not forge another with it."""
    (tmp_path / EVENTS).write_bytes(b"x" * MOST_LINE + encode_event(stepped(0)) + encode_event(stepped(1)))
    tail = EventTail(tmp_path)
    assert all_events(tail) == [stepped(1)]
    assert (tail.position.count, tail.skipped) == (1, 1)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    write(tmp_path, began(), stepped(0), stepped(1))
    tail = EventTail(tmp_path)
    assert len(all_events(tail)) == 3
    os.truncate(tmp_path / EVENTS, len(encode_event(began())))
    assert all_events(tail) == [began()]
    assert tail.position.count == 1
    write(tmp_path, stepped(7), fresh=False)
    assert all_events(tail) == [began(), stepped(7)]


def test_a_line_of_the_greatest_length_counts(tmp_path: Path) -> None:
    short = len(encode_event(Noted(text=""))) - 1
    notes = [Noted(text="x" * (MOST_LINE - short)), Noted(text="x" * (MOST_LINE - short + 1)), Noted(text="y")]
    write(tmp_path, *notes)
    tail = EventTail(tmp_path)
    tail.refresh()
    assert tail.position.count == 2
    assert tail.skipped == 1


@pytest.mark.parametrize("how", ["replaced", "shorter", "longer in place"])
def test_another_run_in_its_place_begins_anew(tmp_path: Path, how: str) -> None:
    write(tmp_path, began(), stepped(0))
    tail = EventTail(tmp_path)
    all_events(tail)
    before = tail.position
    other = [began(name="other", at=2000.0), stepped(5)] if how == "shorter" else whole_run(30)
    if how == "replaced":
        os.unlink(tmp_path / EVENTS)
        tail.refresh()
        assert tail.step(0) == stepped(0), "what was there may be asked for until there is something else"
    if how == "shorter":
        other = other[:1]
    write(tmp_path, *other)
    assert tail.refresh()
    assert all_events(tail) == other
    assert tail.position.stream != before.stream
    assert tail.events(before, 10) == ([], before)
    assert tail.events(Position(0, before.stream), 10)[0] == []


def test_the_same_place_means_the_same_to_another_process(tmp_path: Path) -> None:
    write(tmp_path, *whole_run(3))
    first, second = EventTail(tmp_path), EventTail(tmp_path)
    first.refresh()
    second.refresh()
    assert first.position == second.position == Position.read(str(first.position))


@pytest.mark.parametrize("text", ["", "-", "x", "-1", "1-", "1-xyz", "1" * 13, "1\n", " 1", "1-ab-cd", "٣"])
def test_what_is_no_position(text: str) -> None:
    assert Position.read(text) is None


def test_a_bare_number_is_a_position() -> None:
    assert Position.read("17") == Position(17, "")


def test_of_a_step_that_was_told_twice_the_last_counts(tmp_path: Path) -> None:
    write(tmp_path, began(), stepped(3, members=4), stepped(4), began(), stepped(3, members=3))
    tail = EventTail(tmp_path)
    tail.refresh()
    found = tail.step(3)
    assert found is not None
    assert found.members == 3


def test_the_end_is_one_until_something_happens(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    course: list[tuple[Event, str | None]] = [
        (began(), None),
        (Ended(how="stopped"), "stopped"),
        (Noted(text="bye"), "stopped"),
        (began(), None),
        (Ended(how="over"), "over"),
    ]
    for event, ended in course:
        write(tmp_path, event, fresh=False)
        tail.refresh()
        assert (tail.ended.how if tail.ended else None) == ended


def test_a_pipe_or_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / EVENTS)
    assert not EventTail(tmp_path).refresh()  # and does not hang
    os.unlink(tmp_path / EVENTS)
    (tmp_path / EVENTS).mkdir()
    assert not EventTail(tmp_path).refresh()


@pytest.mark.parametrize("link", ["/dev/zero", "/proc/self/mem", "elsewhere"])
def test_links_are_not_followed(tmp_path: Path, link: str) -> None:
    write(tmp_path / "elsewhere", began())
    (tmp_path / EVENTS).symlink_to(tmp_path / "elsewhere" / EVENTS if link == "elsewhere" else link)
    assert not EventTail(tmp_path).refresh()


def test_a_pipe_that_is_put_there_in_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, began())
    open_file = os.open

    def swapped(path: Path, flags: int, *, dir_fd: int | None) -> int:
        os.unlink(path)
        os.mkfifo(path)
        return open_file(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    assert not EventTail(tmp_path).refresh()


def test_a_disk_that_fails_costs_what_it_does_not_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks at the files would end, and the page stand still."""
    write(tmp_path, began())
    tail = EventTail(tmp_path)
    assert all_events(tail) == [began()]
    write(tmp_path, stepped(0), fresh=False)
    read = os.pread

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    assert not tail.refresh()
    monkeypatch.setattr(os, "pread", read)
    assert all_events(tail) == [began(), stepped(0)]


def test_a_file_without_end_can_be_left(tmp_path: Path) -> None:
    write(tmp_path, began())
    os.truncate(tmp_path / EVENTS, 1 << 40)  # takes no room on the disk
    looks: list[None] = []
    tail = EventTail(tmp_path)
    assert tail.refresh(lambda: looks.append(None) or len(looks) > 3)  # type: ignore[func-returns-value]
    assert tail.position.count == 1


def test_a_server_of_a_file_without_end_ends_at_once(tmp_path: Path) -> None:
    write(tmp_path, began())
    os.truncate(tmp_path / EVENTS, 1 << 40)
    server = PageServer(RunFolder(tmp_path), port=0).__enter__()
    ending = threading.Thread(target=server.__exit__, args=(None, None, None), daemon=True)
    ending.start()
    ending.join(20.0)
    assert not ending.is_alive()


def test_an_event_that_somebody_writes_over_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path, began(), stepped(0), stepped(1))
    tail = EventTail(tmp_path)
    tail.refresh()
    raw = (tmp_path / EVENTS).read_bytes()
    at = raw.index(b'"step":0')
    with (tmp_path / EVENTS).open("r+b") as file:
        file.seek(at)
        file.write(b"#" * 8)
    assert all_events(tail) == [began(), stepped(1)]
    assert tail.step(0) is None


@pytest.mark.long
def test_ten_thousand_steps_of_two_hundred_peers_in_little_memory(tmp_path: Path) -> None:
    names = tuple(f"peer{number}" for number in range(200))
    line = encode_event(stepped(0, owners=names))
    with (tmp_path / EVENTS).open("wb") as file:
        for step in range(10_000):
            file.write(line.replace(b'"step":0', b'"step":%d' % step, 1))
    tail = EventTail(tmp_path)
    tracemalloc.start()
    tail.refresh()
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tail.position.count == 10_000
    assert tail.step(9_999) == stepped(9_999, updates=1, loss=2.0, at=1001.0, owners=names, audits=stepped(0).audits)
    assert kept < 1_000_000
    assert most < 8_000_000


def test_the_index_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "MOST_EVENTS", 5)
    write(tmp_path, *whole_run(10))
    tail = EventTail(tmp_path)
    tail.refresh()
    assert tail.position.count == 5
    assert tail.skipped == 7


@given(data=st.data())
def test_however_the_bytes_come_the_same_events_are_told(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    lines = data.draw(st.lists(st.one_of(st.integers(0, 50), st.binary(max_size=20)), max_size=12))
    events = [stepped(one) for one in lines if isinstance(one, int)]
    raw = b"".join(
        encode_event(stepped(one)) if isinstance(one, int) else one.replace(b"\n", b"") + b"\n" for one in lines
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    tail = EventTail(folder)
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        with (folder / EVENTS).open("ab") as file:
            file.write(raw[begin:end])
        tail.refresh()
    assert all_events(tail) == events
    tail.close()


def test_a_simulation_under_way_comes_before_the_results_of_the_last_one(tmp_path: Path) -> None:
    """Its stream takes the place of the old one when it has ended well, and viewers of it notice nothing."""
    old, new = tmp_path / "events.jsonl", tmp_path / "events.partial.jsonl"
    old.write_bytes(encode_event(Noted(text="old")))
    tail = EventTail(tmp_path)
    tail.refresh()
    assert _texts(tail) == ["old"]
    new.write_bytes(encode_event(Noted(text="new")))
    tail.refresh()
    assert _texts(tail) == ["new"]
    before = tail.position
    new.replace(old)
    with old.open("ab") as file:
        file.write(encode_event(Noted(text="end")))
    tail.refresh()
    assert _texts(tail) == ["new", "end"]
    assert tail.position.stream == before.stream
    tail.close()


def _texts(tail: EventTail) -> list[str]:
    events, _ = tail.events(Position(0, tail.position.stream), 100)
    return [event.text for event in events if isinstance(event, Noted)]
