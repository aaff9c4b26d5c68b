"""Events on disk: whole lines, strictly read, and a disk that fails costs nothing but events."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troth.events.file import (
    EVENTS,
    MOST_LINE,
    STATUS,
    EventError,
    EventFile,
    decode_event,
    decode_status,
    encode_event,
    write_status,
)
from troth.events.kinds import VERSION, Audit, Began, Ended, Event, KnownPeer, Noted, Status, Stepped, Trial

TRIAL = Trial(kind="gradient", target="eve", step=2, verdict="accused", accuser="bob", votes={"bob": "accused"})
SAMPLES: tuple[Event, ...] = (
    Began(source="member", of=9, peers=(KnownPeer(name="bob", key="ab" * 32), KnownPeer(name="eve", liar=True))),
    Stepped(
        step=3, updates=4, of=9, members=2, audits=(Audit("bob", "eve", 2),), trials=(TRIAL,), owners=("eve", "bob")
    ),
    Noted(text="a line\nof many \u2028 kinds \x1b[31m", at=1.5),
    Ended(how="over"),
)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_is_one_line_and_comes_back(event: Event) -> None:
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_event(line) == event


def test_a_loss_that_is_no_number_is_unknown() -> None:
    event = decode_event(encode_event(Stepped(step=0, updates=1, of=1, members=1, loss=math.nan)))
    assert isinstance(event, Stepped)
    assert event.loss is None


def test_another_version_is_refused_and_new_fields_are_passed_over() -> None:
    began = encode_event(SAMPLES[0])
    later = began.replace(b'"source"', b'"version":%d,"source"' % (VERSION + 1), 1)
    with pytest.raises(EventError, match=f"events of version {VERSION + 1}: this Troth reads version {VERSION}"):
        decode_event(later)
    assert decode_event(began.replace(b'"source"', b'"colour":[{}],"source"', 1)) == SAMPLES[0]


@pytest.mark.long
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(EventError):
        decode_event(raw)


@pytest.mark.parametrize("damage", [b'"step":"3"', b'"step":null', b'"step":[[[[1]]]]', b'"step":1e999', b'"step":3.5'])
def test_a_field_of_another_kind_is_refused(damage: bytes) -> None:
    line = encode_event(SAMPLES[1])
    assert line.count(b'"step":3') == 1
    with pytest.raises(EventError):
        decode_event(line.replace(b'"step":3', damage))


def test_lines_are_bounded_and_deep_ones_do_not_crash() -> None:
    with pytest.raises(EventError, match="are the most"):
        decode_event(b" " * (MOST_LINE + 1))
    with pytest.raises(EventError):
        decode_event(b'{"event":"note","text":' + b"[" * 100_000)


def test_a_file_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    first = EventFile(path)
    first.add(SAMPLES[0])
    first.close()
    with path.open("ab") as file:
        file.write(b'{"event":"no')
    second = EventFile(path)
    second.add(SAMPLES[2])
    second.close()
    second.add(SAMPLES[3])  # too late: lost, and nothing happens
    lines = path.read_bytes().splitlines(keepends=True)
    assert (lines[0], lines[2]) == (encode_event(SAMPLES[0]), encode_event(SAMPLES[2]))
    assert len(lines) == 3
    fresh = EventFile(path, fresh=True)
    fresh.add(SAMPLES[3])
    fresh.close()
    assert path.read_bytes() == encode_event(SAMPLES[3])


def test_a_full_disk_costs_events_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / EVENTS).symlink_to(full)
    file = EventFile(tmp_path / EVENTS)
    file.add(SAMPLES[0])
    file.close()
    monkeypatch.setattr(Path, "write_bytes", _no_room)
    write_status(tmp_path, Status(doing="training", at=1.0, started_at=0.0))
    assert not (tmp_path / STATUS).exists()


def _no_room(*_: object) -> int:
    raise OSError(28, "no space left")


def test_a_status_is_replaced_whole(tmp_path: Path) -> None:
    for step in range(3):
        write_status(tmp_path, Status(doing="training", at=1.0, started_at=0.0, step=step))
    assert decode_status((tmp_path / STATUS).read_bytes()).step == 2
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]
    for raw in (b"", b"{}", b'{"doing":"dancing","at":1,"started_at":0}', b"[" * 100_000):
        with pytest.raises(EventError):
            decode_status(raw)


def test_a_step_with_more_votes_than_a_line_holds_loses_the_votes_and_not_its_bans(tmp_path: Path) -> None:
    """A thousand members with long names, who vote in many trials."""
    names = [f"{number:032}" for number in range(1024)]
    trials = tuple(
        Trial(
            kind="gradient", target=name, step=2, verdict="accused", banned=name, votes=dict.fromkeys(names, "accused")
        )
        for name in names[:96]
    )
    event = Stepped(step=3, updates=4, of=9, members=2, trials=trials, silent=("bob",))
    assert len(encode_event(event)) > MOST_LINE
    file = EventFile(tmp_path / EVENTS)
    file.add(event)
    file.close()
    read = decode_event((tmp_path / EVENTS).read_bytes())
    assert isinstance(read, Stepped)
    assert (read.silent, [trial.banned for trial in read.trials]) == (("bob",), names[:96])
