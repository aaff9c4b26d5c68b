"""A peer's folder: claimed for one run, and found again as it was left."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.network.disk.slots import RUN, slot
from tests.network.disk.test_roster_changes import history
from troth.crypto import Digest, Identity
from troth.network.disk.checkpoints import Marks
from troth.network.disk.journal import CHANGES_FILE
from troth.network.disk.lock import DiskError, lock_folder, lock_key
from troth.network.node.folder import PeerFolder
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import State
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

SEAT = Identity.from_secret(b"s" * 32)


def ignore(_: str) -> None:
    pass


def open_folder(
    path: Path, run: Digest = RUN, note: Callable[[str], None] = ignore, owner: Identity | None = SEAT
) -> PeerFolder:
    problem = Problem(make_task("quadratic:dimension=24"))
    work = TrainingWork(problem, OPTIMIZERS["adamw"](), SCHEDULES["constant"](0.1, 10), Primitives())
    return PeerFolder(path, run, work, keep_checkpoints=3, note=note, owner=owner)


def first_state() -> State[Training]:
    problem = Problem(make_task("quadratic:dimension=24"))
    work = TrainingWork(problem, OPTIMIZERS["adamw"](), SCHEDULES["constant"](0.1, 10), Primitives())
    keys = tuple(sorted(Identity.from_secret(bytes([k]) * 32).peer for k in range(1, 5)))
    run = Run(keys, b"test", Parameters(size=24, tau=1.0, byzantine=1), bytes(32))
    first = work.first(0)
    return State.first(run, first, work.digest(first))


OTHER_RUN = Digest(bytes(32))

PRECIOUS = {
    "signed-slots": "0 0 0 1 1234abcd\n",
    "signed-slots.begun": "x",
    "successor.key": "",
    "journal/steps-000000000.jsonl": "{}",
    "checkpoints/step-000000001.json": "{}",
    "checkpoints/step-000000001.safetensors": "x",
    "checkpoints/step-000000000.audit": "x",
    "evidence/ban-step3-eve.json": "{}",
    "model.safetensors": "x",
    "model.json": "{}",
}


@pytest.mark.parametrize("name", PRECIOUS)
def test_a_folder_with_anything_of_worth_belongs_to_one_run(tmp_path: Path, name: str) -> None:
    """Above all, keys and signed slots: without them a peer might sign a slot twice [B1]."""
    path = tmp_path / "peer"
    open_folder(path).close()
    open_folder(path).close()
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text(PRECIOUS[name])
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock"}
    with pytest.raises(DiskError, match=r"belongs to another run: choose another$") as refused:
        open_folder(path, OTHER_RUN)
    assert refused.value.wrong_folder
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock"} == before


def test_a_folder_in_which_nothing_was_done_is_taken_over(tmp_path: Path) -> None:
    """After a wrong manifest, the right one: the same command must do."""
    notes: list[str] = []
    folder = open_folder(tmp_path)
    folder.open_slots(Marks())
    folder.save_step(first_state(), whole=True)
    folder.close()
    assert (tmp_path / "checkpoints/step-000000000.json").exists()
    again = open_folder(tmp_path, OTHER_RUN, notes.append)
    assert notes == [
        f"{tmp_path} was another run's, in which this peer had done nothing yet: it is used for this one now"
    ]
    assert not again.has_slots
    assert again.last(first_state()).state.step == 0
    assert not list((tmp_path / "checkpoints").iterdir())
    again.close()
    assert (tmp_path / "run").read_text().strip() == OTHER_RUN.hex()


def test_a_stranger_without_the_model_finds_where_it_had_followed_the_run_to(tmp_path: Path) -> None:
    """[J1, J2] From there on, records lead from the content that it fetches to wherever the run is."""
    followed, lacks = dataclasses.replace(first_state(), step=7), Digest(b"m" * 32)
    folder = open_folder(tmp_path)
    folder.open_slots(Marks())
    folder.chunks.begin(lacks, b"index")
    folder.save_standing(followed, lacks)
    folder.close()
    again = open_folder(tmp_path)
    found = again.last(first_state())
    assert (found.state.step, found.lacks, found.state.model) == (7, lacks, first_state().model)
    assert again.chunks.begun == lacks
    again.open_slots(Marks())
    again.save_step(dataclasses.replace(first_state(), step=9), whole=True)
    assert list((tmp_path / "download").iterdir()) == [], "the model is in a checkpoint"
    again.close()


def test_one_process_uses_a_folder_at_a_time(tmp_path: Path) -> None:
    first = open_folder(tmp_path)
    with pytest.raises(
        DiskError, match=rf"another troth join \(pid {os.getpid()}, since .*\) uses .*choose another$"
    ) as no:
        open_folder(tmp_path)
    assert no.value.wrong_folder
    first.close()
    open_folder(tmp_path).close()


@pytest.mark.long
def test_the_lock_ends_with_its_process_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from troth.network.disk.lock import lock_folder\n"
        f"lock = lock_folder(Path({str(tmp_path)!r})); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DiskError, match=f"pid {holder.pid}, since"):
            lock_folder(tmp_path)
        holder.kill()
        holder.wait()
        lock_folder(tmp_path).release()


def test_one_process_takes_part_with_a_key_whatever_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = lock_key(RUN, SEAT.peer)
    assert first is not None
    with pytest.raises(
        DiskError, match=r"another troth join \(pid .* takes part in this run with this key: stop it first"
    ):
        lock_key(RUN, SEAT.peer)
    other = lock_key(OTHER_RUN, SEAT.peer)
    assert other is not None, "one key may take part in two runs"
    first.release()
    again = lock_key(RUN, SEAT.peer)
    assert again is not None
    for lock in (other, again):
        lock.release()


def test_a_place_for_locks_that_is_not_ours_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may write where temporary files are: a folder that others may write to is no place for locks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"troth-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"troth-{os.getuid()}").chmod(0o777)
    assert lock_key(RUN, SEAT.peer) is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert lock_key(RUN, SEAT.peer) is None


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(DiskError, match=r"cannot write to .*; choose another$") as refused:
        open_folder(tmp_path / "file")
    assert refused.value.wrong_folder
    assert (tmp_path / "file").read_text() == "precious"


def test_a_successor_key_takes_the_place_of_the_seat_and_stays(tmp_path: Path) -> None:
    """[B1]"""
    folder = open_folder(tmp_path)
    assert folder.current_identity(SEAT) is SEAT
    used = folder.record_keys.next(SEAT.peer)
    folder.make_successor()
    successor = folder.current_identity(SEAT)
    assert successor.peer != SEAT.peer
    assert folder.record_keys.held == ()
    assert folder.record_keys.next(successor.peer) != used, "that signed records of the past [U6]"
    folder.close()
    again = open_folder(tmp_path)
    assert again.current_identity(SEAT).peer == successor.peer
    again.close()


def test_a_saved_step_is_found_and_slots_that_are_older_are_refused(tmp_path: Path) -> None:
    """[B1, B5]"""
    state = first_state()
    folder = open_folder(tmp_path)
    assert not folder.has_slots
    folder.open_slots(Marks()).claim(slot(0))
    old = (tmp_path / "signed-slots").read_bytes()
    assert folder.slots is not None
    folder.slots.claim(slot(1))
    folder.journal.announced(slot(0), {})
    folder.save_step(state, whole=False)
    folder.close()
    again = open_folder(tmp_path)
    assert again.has_slots
    assert again.last(state).state.roster == state.roster
    assert again.last(state).lacks is None
    (tmp_path / "signed-slots").write_bytes(old)
    with pytest.raises(DiskError, match="older than the last checkpoint"):
        again.open_slots(again.marks())
    again.close()


def test_a_torn_journal_is_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    folder = open_folder(tmp_path, note=notes.append)
    folder.journal.announced(slot(0), {})
    folder.close()
    with next((tmp_path / "journal").glob("*.jsonl")).open("ab") as file:
        file.write(b'{"chain": "00')
    assert notes == []
    open_folder(tmp_path, note=notes.append).close()
    assert notes == ["the journal's last line was torn: 13 bytes of it are cut off"]


def test_damage_that_is_mended_is_noted(tmp_path: Path) -> None:
    """A disk that flips one bit flips others: people should hear of the first."""
    notes: list[str] = []
    folder = open_folder(tmp_path)
    folder.open_slots(Marks())
    folder.journal.recorded(history(3, 1))
    for step in range(3):
        folder.save_step(dataclasses.replace(first_state(), step=step), whole=True)
    folder.close()
    whole = open_folder(tmp_path, note=notes.append)
    whole.last(first_state())
    whole.close()
    assert notes == []
    for file in (tmp_path / "journal" / CHANGES_FILE, tmp_path / "checkpoints" / "step-000000002.json"):
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    again = open_folder(tmp_path, note=notes.append)
    assert again.last(first_state()).state.step == 1
    again.close()
    assert notes[0].startswith(
        f"{tmp_path / 'journal' / CHANGES_FILE} was damaged, or older than the journal beside it"
    )
    assert notes[1].startswith(
        f"the checkpoint of step 2 in {tmp_path} is damaged: this peer goes on from that of step 1"
    )
    assert len(notes) == 2


@pytest.mark.parametrize("name", ["log.txt", "journal/steps-000000000.jsonl", "status.json.partial"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    """A folder that came with a stranger's manifest, and is called as this peer's will be."""
    victim = tmp_path / "bashrc"
    victim.write_text("mine")
    link = tmp_path / "peer" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(DiskError, match="is a link, and would be written through"):
        open_folder(tmp_path / "peer")
    assert victim.read_text() == "mine"


def test_a_link_to_a_folder_hides_no_other_link(tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent/steps-000000000.jsonl").symlink_to(tmp_path / "bashrc")
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer/journal").symlink_to(tmp_path / "sent")
    with pytest.raises(DiskError, match="is a link, and would be written through"):
        open_folder(tmp_path / "peer")


def test_a_folder_may_lie_on_another_disk(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer/checkpoints").symlink_to(tmp_path / "large")
    open_folder(tmp_path / "peer").close()


@pytest.mark.parametrize("name", [*PRECIOUS, "record-keys/000000001.key"])
@pytest.mark.parametrize("mark", [RUN.hex() + "\n", None])
def test_a_folder_that_came_with_a_manifest_is_not_taken_for_this_peers_own(
    tmp_path: Path, name: str, mark: str | None
) -> None:
    """[B1] Whoever sends it would have the peer go by a key that they have too, and can sign twice with."""
    file = tmp_path / "peer" / name
    file.parent.mkdir(parents=True)
    file.write_text(PRECIOUS.get(name) or "x")
    if mark is not None:
        open_folder(tmp_path / "others", owner=Identity.from_secret(b"o" * 32)).close()
        (tmp_path / "peer/owner").write_text((tmp_path / "others/owner").read_text())
        (tmp_path / "peer/run").write_text(mark)
    with pytest.raises(DiskError, match=r"and no signature of this key: choose another$") as refused:
        open_folder(tmp_path / "peer")
    assert refused.value.wrong_folder


def test_the_first_state_that_came_with_a_manifest_is_not_kept(tmp_path: Path) -> None:
    sent = tmp_path / "peer/checkpoints/step-000000000.json"
    sent.parent.mkdir(parents=True)
    sent.write_text("{}")
    folder = open_folder(tmp_path / "peer")
    assert not sent.exists()
    folder.open_slots(Marks())
    folder.save_step(first_state(), whole=True)
    folder.close()
    open_folder(tmp_path / "peer").close()
    assert sent.exists(), "from here on it is this peer's own"


def test_a_link_that_came_with_a_manifest_leads_to_nothing_of_its_owner(tmp_path: Path) -> None:
    """Downloads that are not finished would be deleted there."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/film.partial").write_text("half")
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer/download").symlink_to(tmp_path / "mine")
    with pytest.raises(DiskError, match="is a link, and would be written through"):
        open_folder(tmp_path / "peer")
    assert (tmp_path / "mine/film.partial").read_text() == "half"
