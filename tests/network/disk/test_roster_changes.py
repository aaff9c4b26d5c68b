"""Certified records that changed the roster: all of them stay, also when the journal has forgotten their steps, and none is lost
to a bit that flipped."""

from pathlib import Path

import msgspec
import pytest

from tests.network.disk.slots import RUN
from tests.network.disk.test_journal import record
from troth.network.disk.journal import CHANGES_FILE, Journal, RosterChanges, read_exactly
from troth.network.disk.lock import DiskError
from troth.protocol.core.records import decode_record, encode_record
from troth.protocol.wire.frames import CertifiedRecord


def certified(step: int, *, leaves: bool = False, incarnation: int = 0, changed: int = -1) -> CertifiedRecord:
    """`changed`: step of the change before it."""
    made = msgspec.structs.replace(record(step), incarnation=incarnation, changed=changed)
    gone = msgspec.structs.replace(made, absent=(bytes([1]) * 32,)) if leaves else made
    return CertifiedRecord(encode_record(gone), {bytes([1]) * 32: bytes(64)})


def steps(changes: RosterChanges, before: int = 10**6) -> list[int]:
    return [decode_record(one.record).step for one in changes.before(before)]


def history(length: int, *changes: int) -> list[CertifiedRecord]:
    """All records of a run, in which the members changed in these steps."""
    before = {step: max((at for at in changes if at < step), default=-1) for step in range(length)}
    return [certified(step, leaves=step in changes, changed=before[step]) for step in range(length)]


def test_changes_outlive_the_journals_files(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN, steps_per_file=1, keep_files=2)
    for one in history(8, 1, 5):
        journal.recorded([one])
    journal.close()
    assert len(list(tmp_path.glob("steps-*.jsonl"))) == 2
    again = Journal(tmp_path, RUN, steps_per_file=1, keep_files=2)
    assert steps(again.roster_changes) == [1, 5]
    assert steps(again.roster_changes, before=5) == [1]
    assert again.roster_changes.before(6) == [certified(1, leaves=True), certified(5, leaves=True, changed=1)]
    again.close()


@pytest.mark.parametrize("leaves", [True, False])
def test_a_step_that_was_made_again_replaces_what_came_of_it(tmp_path: Path, leaves: bool) -> None:
    """[B6]"""
    changes = RosterChanges(tmp_path / "changes")
    changes.add([one for one in history(6, 1, 4, 5) if decode_record(one.record).changes_roster])
    again = certified(4, leaves=leaves, incarnation=1, changed=1)
    changes.add([again])
    assert steps(changes) == ([1, 4] if leaves else [1])
    assert steps(RosterChanges(tmp_path / "changes")) == steps(changes)
    assert not leaves or changes.before(9)[-1] == again


CHANGES = (1, 4, 9)
LENGTH = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal whose files begin at step 4: of the three changes of the members it holds the last two."""
    journal = Journal(tmp_path, RUN, steps_per_file=4, keep_files=2)
    for one in history(LENGTH, *CHANGES):
        journal.recorded([one])
    journal.close()
    return tmp_path


def opened(folder: Path) -> RosterChanges:
    journal = Journal(folder, RUN, steps_per_file=4, keep_files=2)
    journal.close()
    return journal.roster_changes


@pytest.mark.long
def test_every_flipped_bit_is_mended_from_the_journal_or_refused(folder: Path) -> None:
    """It was taken for an empty file; the next change of members then wrote over all that were before."""
    path = folder / CHANGES_FILE
    good = path.read_bytes()
    first = good.index(b"\n") + 1
    for place in {*range(0, len(good), 7), *range(first - 3, first + 3), len(good) - 1}:
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=f"line {1 + good[:place].count(10)}"):
            read_exactly(path)
        if place >= first:
            changes = opened(folder)
            assert changes.mended
            assert steps(changes) == [*CHANGES]
            assert path.read_bytes() == good
        else:  # the journal has forgotten that step
            with pytest.raises(DiskError, match=rf"{CHANGES_FILE}, line 1: .* bring back a copy"):
                opened(folder)
            assert path.read_bytes() == bad, "nothing was written over"
    path.write_bytes(good)
    assert not opened(folder).mended


def test_lines_that_are_missing_are_mended_from_the_journal_or_named(folder: Path) -> None:
    """An older copy, or the file of a member that knew less."""
    path = folder / CHANGES_FILE
    good = path.read_bytes()
    lines = good.splitlines(keepends=True)
    for kept in ([0], [0, 1], [0, 2]):
        path.write_bytes(b"".join(lines[at] for at in kept))
        assert opened(folder).mended
        assert path.read_bytes() == good
    for kept in ([], [1, 2], [2]):
        path.write_bytes(b"".join(lines[at] for at in kept))
        with pytest.raises(DiskError, match=rf"{CHANGES_FILE}, step 1: a change of the members is missing there"):
            opened(folder)
    path.unlink()
    with pytest.raises(DiskError, match="step 1: a change of the members is missing"):
        opened(folder)
    path.write_bytes(lines[0] + lines[2] + lines[1])
    with pytest.raises(ValueError, match="line 3"):
        read_exactly(path)
    assert opened(folder).mended
    assert path.read_bytes() == good


def test_a_journal_that_has_forgotten_nothing_makes_the_file_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN)
    for one in history(LENGTH, *CHANGES):
        journal.recorded([one])
    journal.close()
    good = (tmp_path / CHANGES_FILE).read_bytes()
    for raw in (None, b"", b"\xff", b"{}\n", b"[" * 10_000, bytes(300)):
        if raw is None:
            (tmp_path / CHANGES_FILE).unlink()
        else:
            (tmp_path / CHANGES_FILE).write_bytes(raw)
        assert opened(tmp_path).mended
        assert (tmp_path / CHANGES_FILE).read_bytes() == good


def test_a_change_that_was_written_and_not_its_record_is_kept_or_handed_in_again(folder: Path) -> None:
    """A power cut between the two files: the change is newer than the journal. One that does not follow is no loss either."""
    path = folder / CHANGES_FILE
    good = path.read_bytes()
    RosterChanges(path).add([certified(LENGTH, leaves=True, changed=9)])
    assert steps(opened(folder)) == [*CHANGES, LENGTH]
    path.write_bytes(good)
    RosterChanges(path).add([certified(LENGTH, leaves=True, changed=9), certified(LENGTH + 2, leaves=True, changed=12)])
    path.write_bytes(path.read_bytes().replace(path.read_bytes().splitlines(keepends=True)[3], b""))
    assert steps(opened(folder)) == [*CHANGES]


def test_of_a_step_that_was_made_again_the_journals_record_counts(folder: Path) -> None:
    """[B6] The power went after the file was written, and before the journal was."""
    before = opened(folder).before(LENGTH)
    RosterChanges(folder / CHANGES_FILE).add([certified(9, incarnation=1, changed=4)])
    assert opened(folder).before(LENGTH) == before


def test_a_file_that_is_whole_is_not_mended(tmp_path: Path) -> None:
    """[B6, J8] A stranger that was there before followed the run anew: of a step that was made again since, its journal holds the
    other record."""
    journal = Journal(tmp_path, RUN)
    journal.recorded([certified(0), certified(1, leaves=True)])
    now = [certified(4, leaves=True), certified(9, leaves=True, changed=4)]
    journal.roster_changes.add([certified(1, incarnation=1), *now])
    journal.recorded([certified(12, incarnation=1, changed=9)])
    journal.close()
    changes = opened(tmp_path)
    assert not changes.mended
    assert changes.before(20) == now


@pytest.mark.parametrize("raw", [b"\xff", b"{}\n", b'{"record": "00", "signatures": {}}\n', b"[" * 10_000])
def test_a_damaged_file_alone_is_refused_and_stays(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / CHANGES_FILE).write_bytes(raw)
    with pytest.raises(DiskError, match=f"{CHANGES_FILE}, line 1: "):
        RosterChanges(tmp_path / CHANGES_FILE)
    with pytest.raises(DiskError, match=f"{CHANGES_FILE}, line 1: "):
        opened(tmp_path)
    assert (tmp_path / CHANGES_FILE).read_bytes() == raw
