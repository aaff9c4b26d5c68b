"""Certified records that changed the roster: all of them stay, also when the journal has forgotten their steps."""

from pathlib import Path

import msgspec
import pytest

from tests.network.disk.slots import RUN
from tests.network.disk.test_journal import record
from troth.network.disk.journal import Journal
from troth.network.disk.roster_changes import RosterChanges
from troth.protocol.core.records import decode_record, encode_record
from troth.protocol.wire.frames import CertifiedRecord


def certified(step: int, *, leaves: bool = False, incarnation: int = 0) -> CertifiedRecord:
    made = msgspec.structs.replace(record(step), incarnation=incarnation)
    gone = msgspec.structs.replace(made, absent=(bytes([1]) * 32,)) if leaves else made
    return CertifiedRecord(encode_record(gone), {bytes([1]) * 32: bytes(64)})


def steps(changes: RosterChanges, before: int = 10**6) -> list[int]:
    return [decode_record(one.record).step for one in changes.before(before)]


def test_changes_outlive_the_journals_files(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN, steps_per_file=1, keep_files=2)
    for step in range(8):
        journal.recorded([certified(step, leaves=step in (1, 5))])
    journal.close()
    assert len(list(tmp_path.glob("steps-*.jsonl"))) == 2
    again = Journal(tmp_path, RUN, steps_per_file=1, keep_files=2)
    assert steps(again.roster_changes) == [1, 5]
    assert steps(again.roster_changes, before=5) == [1]
    assert again.roster_changes.before(6) == [certified(1, leaves=True), certified(5, leaves=True)]
    again.close()


@pytest.mark.parametrize("leaves", [True, False])
def test_a_step_that_was_made_again_replaces_what_came_of_it(tmp_path: Path, leaves: bool) -> None:
    """[B6]"""
    changes = RosterChanges(tmp_path / "changes")
    changes.add([certified(step, leaves=True) for step in (1, 4, 5)])
    again = certified(4, leaves=leaves, incarnation=1)
    changes.add([again])
    assert steps(changes) == ([1, 4] if leaves else [1])
    assert steps(RosterChanges(tmp_path / "changes")) == steps(changes)
    assert not leaves or changes.before(9)[-1] == again


@pytest.mark.parametrize("raw", [b"\xff", b"{}\n", b'{"record": "00", "signatures": {}}\n', b"[" * 10_000])
def test_a_damaged_file_stops_nobody(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "changes"
    path.write_bytes(raw)
    changes = RosterChanges(path)
    assert steps(changes) == []
    changes.add([certified(3, leaves=True)])
    assert steps(RosterChanges(path)) == [3]
