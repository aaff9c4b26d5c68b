"""What a peer keeps on disk: slots that it signed, journal, checkpoints. Torn, tampered with, full."""

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from troth.crypto import Context, Digest, PeerId, Signature
from troth.evidence import write_bytes
from troth.network.checkpoints import CheckpointError, Checkpoints
from troth.network.journal import Journal, JournalError, read_journal
from troth.network.slots import FileSlots, SlotsError
from troth.protocol.frames import Begun, Ready
from troth.protocol.journal import SignedBeforeError
from troth.protocol.messages import Announced, Envelope, Phase
from troth.protocol.primitives import Primitives
from troth.protocol.records import StepRecord, decode_record
from troth.protocol.run import Parameters, Run
from troth.protocol.state import Outcome, State
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

RUN = Digest(bytes(range(32)))


def place(step: int, phase: Phase = Phase.COMMIT, attempt: int = 0) -> Context:
    return Context(RUN, step, phase, attempt)


# Slots (SPEC B1)


def test_a_slot_is_signed_once_whatever_happens(tmp_path: Path) -> None:
    """[B1] Not again in the same life, nor in the next."""
    slots = FileSlots(tmp_path / "slots")
    assert slots.last_step == -1
    slots.claim(place(3))
    slots.claim(place(3, Phase.CLIP))
    with pytest.raises(SignedBeforeError):
        slots.claim(place(3))
    slots.close()
    again = FileSlots(tmp_path / "slots")
    assert again.last_step == 3
    with pytest.raises(SignedBeforeError):
        again.claim(place(3, Phase.CLIP))
    again.claim(place(3, Phase.CLIP, attempt=1))
    again.close()


def test_a_new_beginning_is_remembered(tmp_path: Path) -> None:
    """[B1, B5] A step that is made again has places of its own; and what proves that it began lasts as they do."""
    slots, begun = FileSlots(tmp_path / "slots"), Begun(3, bytes(32), 1, {bytes(32): Ready(3, bytes(64))})
    assert slots.begun is None
    slots.claim(place(3, Phase.VOTE, attempt=4))
    slots.begins(begun)
    slots.claim(place(3)._replace(incarnation=1))
    slots.close()
    again = FileSlots(tmp_path / "slots")
    assert (again.last_step, again.last_incarnation, again.begun) == (3, 1, begun)
    with pytest.raises(SignedBeforeError):
        again.claim(place(3, Phase.VOTE, attempt=5))
    again.close()
    (tmp_path / "slots.begun").write_bytes(b"torn")
    assert FileSlots(tmp_path / "slots").begun is None


@pytest.mark.parametrize("torn", [b"7 0", b"7", b"7 0 0 1"])
def test_a_torn_line_was_not_signed(tmp_path: Path, torn: bytes) -> None:
    """[B1] It is written before anything is signed, so what is not whole was not."""
    (tmp_path / "slots").write_bytes(b"5 0 0 1\n5 0 0 2\n" + torn)
    slots = FileSlots(tmp_path / "slots")
    assert slots.last_step == 5
    slots.claim(place(7))
    slots.close()
    assert (tmp_path / "slots").read_bytes() == b"5 0 0 2\n7 0 0 1\n"


def test_a_damaged_file_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "slots").write_bytes(b"5 0 1\nfive 0 2\n")
    with pytest.raises(SlotsError, match="comes back under a new key"):
        FileSlots(tmp_path / "slots")


def test_the_file_stays_short(tmp_path: Path) -> None:
    slots = FileSlots(tmp_path / "slots")
    for step in range(5000):
        slots.claim(place(step))
    slots.close()
    assert (tmp_path / "slots").stat().st_size < 40_000
    again = FileSlots(tmp_path / "slots")
    assert again.last_step == 4999
    again.close()


def test_what_cannot_be_written_is_not_signed(tmp_path: Path) -> None:
    slots = FileSlots(tmp_path / "slots")
    os.close(slots._file)
    slots._file = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(SlotsError, match="nothing is signed"):
        slots.claim(place(0))
    slots.close()


# Journal


def said(step: int) -> dict[PeerId, Announced]:
    envelope = Envelope(b"payload %d" % step, Signature(bytes(64)))
    return {PeerId(bytes(32)): Announced(PeerId(bytes(32)), None, envelope)}  # type: ignore[arg-type]


def test_lines_are_chained_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN)
    for step in range(3):
        journal.announced(place(step), said(step))
    journal.close()
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as handle:
        handle.write(b'{"chain": "00')
    again = Journal(tmp_path, RUN)
    again.announced(place(3), said(3))
    again.close()
    lines = list(read_journal(file))
    assert [line.get("place", [None])[0] for line in lines] == [None, 0, 1, 2, 3]


@pytest.mark.parametrize("change", ["dropped", "swapped", "changed"])
def test_tampering_breaks_the_chain(tmp_path: Path, change: str) -> None:
    journal = Journal(tmp_path, RUN)
    for step in range(4):
        journal.announced(place(step), said(step))
    journal.close()
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_text().splitlines()
    if change == "dropped":
        del lines[2]
    elif change == "swapped":
        lines[2], lines[3] = lines[3], lines[2]
    else:
        lines[2] = lines[2].replace('"place": [1,', '"place": [9,')
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(JournalError, match="line 3: the chain is broken"):
        list(read_journal(file))


def test_old_files_go_and_the_chain_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN, steps_per_file=2, keep_files=3)
    for step in range(20):
        journal.announced(place(step), said(step))
    journal.close()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert [file.stem for file in files] == ["steps-000000014", "steps-000000016", "steps-000000018"]
    last_of = [json.loads(file.read_text().splitlines()[-1])["chain"] for file in files]
    heads = [next(read_journal(file))["after"] for file in files]
    assert heads[1:] == last_of[:-1]


@pytest.mark.parametrize("gap", [None, 7])
def test_records_are_found_again_for_those_who_were_gone(tmp_path: Path, gap: int | None) -> None:
    """[B5] Up to the last one, as far back as nothing is missing."""
    journal = Journal(tmp_path, RUN, steps_per_file=5)
    written = {step: record(step) for step in range(12) if step != gap}
    for step, one in written.items():
        signed = {PeerId(bytes(32)): Signature(bytes([step]) * 64)}
        journal.ended(cast("Outcome[Training]", SimpleNamespace(record=one, record_signatures=signed)))
    journal.close()
    links = Journal(tmp_path, RUN, steps_per_file=5).links(11)
    first = 5 if gap is None else gap + 1  # the last two files are read
    assert [decode_record(link.record) for link in links] == [written[step] for step in range(first, 11)]
    assert [link.signatures for link in links] == [{bytes(32): bytes([step]) * 64} for step in range(first, 11)]
    assert Journal(tmp_path, RUN, steps_per_file=5).links(20) == []
    damaged = tmp_path / "steps-000000005.jsonl"
    lines = damaged.read_text().splitlines()
    damaged.write_text("\n".join([*lines[:-2], lines[-2].replace('"record": "', '"record": "zz'), lines[-1]]) + "\n")
    assert len(Journal(tmp_path, RUN, steps_per_file=5).links(11)) == 2, "what follows on the damaged line"


def record(step: int) -> StepRecord:
    one, key = Digest(bytes(32)), (bytes([1]) * 32,)
    return StepRecord(step, key, key, key, 1, one, one, one, one, True, 1.0, None, 0.5, ())


# Checkpoints


@pytest.fixture
def work() -> TrainingWork:
    problem = Problem(make_task("quadratic:dimension=24"))
    return TrainingWork(problem, OPTIMIZERS["adamw"](), SCHEDULES["constant"](0.1, 10), Primitives())


def state(work: TrainingWork, step: int) -> State[Training]:
    keys = tuple(sorted(PeerId(bytes([k]) * 32) for k in range(4)))
    run = Run(keys, b"test", Parameters(size=24, tau=1.0, byzantine=1), bytes(32))
    first = State.first(run, work.first(step))
    return dataclasses.replace(first, step=step)


def test_a_checkpoint_is_read_back_as_it_was(tmp_path: Path, work: TrainingWork) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, work)
    for step in range(6):
        checkpoints.save(state(work, step))
    assert len(list(tmp_path.iterdir())) == 6  # three of two files each
    found = Checkpoints(tmp_path, RUN, work).last(state(work, 99))
    wanted = state(work, 5)
    assert dataclasses.replace(found.state, training=wanted.training) == wanted
    assert work.digest(found.state.training) == work.digest(wanted.training)
    assert found.lacks is None


class _SlowDisk:
    """On which a model takes two seconds to write. Every model is large."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("troth.network.checkpoints._SMALL", 0)
        monkeypatch.setattr("troth.network.checkpoints.write_bytes", self._write)

    def _write(self, path: Path, raw: bytes) -> None:
        self.now += 2.0 if path.suffix == ".safetensors" else 0.0
        write_bytes(path, raw)


def test_a_large_model_is_saved_now_and_then_and_when_the_peer_stops(
    tmp_path: Path, work: TrainingWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[B5] In between it is known which one is lacking; if all stop, somebody must have it."""
    disk = _SlowDisk(monkeypatch)
    checkpoints = Checkpoints(tmp_path, RUN, work, every=4, clock=lambda: disk.now)
    for step, whole in ((1, False), (2, False), (3, False), (4, False), (5, False), (5, True), (6, False)):
        stopped = dataclasses.replace(state(work, step), incarnation=step)
        checkpoints.save(stopped, whole=whole)
        found = checkpoints.last(state(work, 0))
        assert (found.state.step, found.state.incarnation) == (step, step)
        saved = step in (1, 4) or whole  # the first, its turn, and when the peer stops
        assert found.lacks == (None if saved else work.digest(stopped.training))


def test_a_large_model_is_saved_with_every_step_if_steps_take_long(
    tmp_path: Path, work: TrainingWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _SlowDisk(monkeypatch)
    checkpoints = Checkpoints(tmp_path, RUN, work, every=1000, keep=100, clock=lambda: disk.now)
    for step in range(1, 11):
        checkpoints.save(state(work, step))
        disk.now += 60.0 if step < 5 else 101.0
    saved = [int(path.stem.removeprefix("step-")) for path in sorted(tmp_path.glob("*.safetensors"))]
    assert saved == [1, 3, 5, 6, 7, 8, 9, 10], "for less than a fiftieth of the time"


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path, work: TrainingWork) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, work)
    checkpoints.save(state(work, 1))
    (tmp_path / "step-000000002.json").write_bytes(b'{"format": "troth ch')
    found = checkpoints.last(state(work, 99))
    assert found.state.step == 1


def test_a_damaged_model_is_not_taken(tmp_path: Path, work: TrainingWork) -> None:
    """Who comes back gets the model from the others; where the run was is still worth knowing."""
    checkpoints = Checkpoints(tmp_path, RUN, work)
    checkpoints.save(state(work, 1))
    model = tmp_path / "step-000000001.safetensors"
    raw = bytearray(model.read_bytes())
    raw[-1] ^= 1
    model.write_bytes(raw)
    first = state(work, 99)
    found = checkpoints.last(first)
    assert torch.equal(found.state.training.parameters_D, first.training.parameters_D)
    assert found.lacks == work.digest(state(work, 1).training)


def test_another_runs_checkpoint_is_refused(tmp_path: Path, work: TrainingWork) -> None:
    Checkpoints(tmp_path, RUN, work).save(state(work, 1))
    with pytest.raises(CheckpointError, match="another run"):
        Checkpoints(tmp_path, Digest(bytes(32)), work).last(state(work, 0))
