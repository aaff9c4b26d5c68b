"""`troth invite`: what a journal says of how the members changed, while its peer goes on writing (SPEC J9)."""

from pathlib import Path

import pytest

from tests.network.disk.slots import RUN
from tests.network.disk.test_roster_changes import certified, history
from troth.crypto import blob_digest
from troth.network.disk.chunks import invitation_from
from troth.network.disk.journal import CHANGES_FILE, Journal
from troth.network.disk.lock import DiskError
from troth.protocol.recovery.following import Invitation


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A peer's folder, and its open journal of six steps in two files, of which step 2 changed the members."""
    (tmp_path / "run").write_text(RUN.hex() + "\n")
    made = Journal(tmp_path / "journal", RUN, steps_per_file=3)
    for one in history(6, 2):
        made.recorded([one])
    return made


def expected(step: int, *changed: int) -> Invitation:
    there = [(at, history(9, *changed)[at]) for at in changed]
    return Invitation.to(RUN, step, [(at, blob_digest(one.record)) for at, one in there])


def test_an_invitation_names_the_changes_up_to_the_last_certified_record(tmp_path: Path, journal: Journal) -> None:
    """[J9] Lines that are only half written do not count."""
    assert invitation_from(tmp_path) == (RUN, expected(5, 2))
    journal.recorded([certified(6, leaves=True, changed=2)])
    assert invitation_from(tmp_path) == (RUN, expected(6, 2, 6))
    newest = max((tmp_path / "journal").glob("steps-*.jsonl"))
    newest.write_bytes(newest.read_bytes()[:-20])  # the signatures over step 6
    assert invitation_from(tmp_path) == (RUN, expected(5, 2, 6)), "a change after that step does not matter"
    assert expected(5, 2, 6) == expected(5, 2) != expected(5)
    assert expected(5, 2) != expected(4, 2)


def test_a_folder_without_a_certified_step_invites_nobody(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="no peer's folder"):
        invitation_from(tmp_path)
    (tmp_path / "run").write_text(RUN.hex())
    (tmp_path / "journal").mkdir()
    with pytest.raises(DiskError, match="wait for one"):
        invitation_from(tmp_path)


@pytest.mark.usefixtures("journal")
def test_nobody_is_invited_into_a_history_that_lacks_members(tmp_path: Path) -> None:
    """[J9] A newcomer would take the true run for the thieves'."""
    path, right = tmp_path / "journal" / CHANGES_FILE, expected(5, 2)
    good = path.read_bytes()
    for place in range(0, len(good), 5):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(DiskError, match=f"{CHANGES_FILE}, line 1: .* troth join mends it"):
            invitation_from(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(DiskError, match=f"{CHANGES_FILE}, step 2: a change of the members is missing"):
        invitation_from(tmp_path)
    path.unlink()
    with pytest.raises(DiskError, match=f"{CHANGES_FILE}, step 2: a change of the members is missing"):
        invitation_from(tmp_path)
    path.write_bytes(good)
    assert invitation_from(tmp_path) == (RUN, right)


@pytest.mark.usefixtures("journal")
def test_a_flipped_bit_in_the_name_of_the_run_makes_no_invitation(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    good = mark.read_bytes()
    for place in range(64):
        bad = bytearray(good)
        bad[place] ^= 1
        mark.write_bytes(bad)
        with pytest.raises(DiskError, match="names another run than"):
            invitation_from(tmp_path)


def test_a_flipped_bit_in_the_journal_makes_no_invitation(tmp_path: Path, journal: Journal) -> None:
    """[J9] The chain is followed to where it ends; what stands in older files is not looked at."""
    journal.close()
    newest = max((tmp_path / "journal").glob("steps-*.jsonl"))
    good = newest.read_bytes()
    for place in range(0, len(good) - 1, 11):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        newest.write_bytes(bad)
        with pytest.raises(DiskError, match=f"{newest.name}, line {1 + good[:place].count(10)}: "):
            invitation_from(tmp_path)
