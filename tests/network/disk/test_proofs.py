"""`troth invite`: what a journal says of how the members changed, while its peer goes on writing (SPEC J9)."""

from pathlib import Path

import pytest

from tests.network.disk.slots import RUN
from tests.network.disk.test_roster_changes import certified
from troth.crypto import blob_digest
from troth.network.disk.errors import DiskError
from troth.network.disk.journal import Journal
from troth.network.disk.proofs import invitation_from
from troth.protocol.recovery.invitation import Invitation


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A peer's folder, and its open journal of six steps in two files, of which step 2 changed the members."""
    (tmp_path / "run").write_text(RUN.hex() + "\n")
    made = Journal(tmp_path / "journal", RUN, steps_per_file=3)
    for step in range(6):
        made.recorded([certified(step, leaves=step == 2)])
    return made


def expected(step: int, *changed: int) -> Invitation:
    return Invitation.to(RUN, step, [(at, blob_digest(certified(at, leaves=True).record)) for at in changed])


def test_an_invitation_names_the_changes_up_to_the_last_certified_record(tmp_path: Path, journal: Journal) -> None:
    """[J9] Lines that are only half written do not count."""
    assert invitation_from(tmp_path) == (RUN, expected(5, 2))
    journal.recorded([certified(6, leaves=True)])
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
