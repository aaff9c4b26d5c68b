"""A peer's folder: claimed for one run, and found again as it was left."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.network.disk.slots import RUN, slot
from troth.crypto import Digest, Identity
from troth.network.disk.checkpoints import Marks
from troth.network.disk.errors import DiskError
from troth.network.disk.signed_slots import SignedSlotsError
from troth.network.node.folder import PeerFolder
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import State
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

SEAT = Identity.from_secret(b"s" * 32)


def ignore(_: str) -> None:
    pass


def open_folder(path: Path, run: Digest = RUN, note: Callable[[str], None] = ignore) -> PeerFolder:
    problem = Problem(make_task("quadratic:dimension=24"))
    work = TrainingWork(problem, OPTIMIZERS["adamw"](), SCHEDULES["constant"](0.1, 10), Primitives())
    return PeerFolder(path, run, work, keep_checkpoints=3, note=note)


def first_state() -> State[Training]:
    problem = Problem(make_task("quadratic:dimension=24"))
    work = TrainingWork(problem, OPTIMIZERS["adamw"](), SCHEDULES["constant"](0.1, 10), Primitives())
    keys = tuple(sorted(Identity.from_secret(bytes([k]) * 32).peer for k in range(1, 5)))
    run = Run(keys, b"test", Parameters(size=24, tau=1.0, byzantine=1), bytes(32))
    return State.first(run, work.first(0))


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    open_folder(tmp_path / "peer").close()
    open_folder(tmp_path / "peer").close()
    with pytest.raises(DiskError, match=r"belongs to another run: choose another$") as refused:
        open_folder(tmp_path / "peer", Digest(bytes(32)))
    assert refused.value.wrong_folder


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
    folder.make_successor()
    successor = folder.current_identity(SEAT)
    assert successor.peer != SEAT.peer
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
    with pytest.raises(SignedSlotsError, match="older than the last checkpoint"):
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
