"""What a peer keeps on disk: slots that it signed, journal, checkpoints. Torn, tampered with, full."""

import dataclasses
import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import torch

from troth.crypto import Digest, PeerId, Signature, Slot
from troth.files import write_bytes
from troth.network.disk.checkpoints import CheckpointError, Checkpoints, Marks
from troth.network.disk.journal import Journal, JournalError, read_journal
from troth.network.disk.signed_slots import SignedSlotsError, SignedSlotsFile
from troth.protocol.broadcast.signed_slots import SignedBeforeError
from troth.protocol.core.records import StepRecord, decode_record, encode_record
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import State
from troth.protocol.wire.frames import CertifiedRecord, Ready, RestartCertificate
from troth.protocol.wire.messages import Announced, Envelope, Phase
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

RUN = Digest(bytes(range(32)))


def slot(step: int, phase: Phase = Phase.COMMIT, attempt: int = 0) -> Slot:
    return Slot(RUN, step, phase, attempt)


# Slots (SPEC B1)


def test_a_slot_is_signed_once_whatever_happens(tmp_path: Path) -> None:
    """[B1] Not again in the same life, nor in the next."""
    slots = SignedSlotsFile(tmp_path / "slots")
    assert slots.last_step == -1
    slots.claim(slot(3))
    slots.claim(slot(3, Phase.CLIP))
    with pytest.raises(SignedBeforeError):
        slots.claim(slot(3))
    slots.close()
    again = SignedSlotsFile(tmp_path / "slots")
    assert again.last_step == 3
    with pytest.raises(SignedBeforeError):
        again.claim(slot(3, Phase.CLIP))
    again.claim(slot(3, Phase.CLIP, attempt=1))
    again.close()


def test_a_new_beginning_is_remembered(tmp_path: Path) -> None:
    """[B1, B5] A step that is made again has places of its own; and what proves that it began lasts as they do."""
    slots, begun = (
        SignedSlotsFile(tmp_path / "slots"),
        RestartCertificate(3, bytes(32), 1, {bytes(32): Ready(3, bytes(64))}),
    )
    assert slots.begun is None
    slots.claim(slot(3, Phase.VOTE, attempt=4))
    slots.begins(begun)
    slots.claim(slot(3)._replace(incarnation=1))
    slots.close()
    again = SignedSlotsFile(tmp_path / "slots")
    assert (again.last_step, again.last_incarnation, again.begun) == (3, 1, begun)
    with pytest.raises(SignedBeforeError):
        again.claim(slot(3, Phase.VOTE, attempt=5))
    again.close()
    (tmp_path / "slots.begun").write_bytes(b"torn")
    assert SignedSlotsFile(tmp_path / "slots").begun is None


def signed_slots(path: Path, *slots: Slot) -> bytes:
    file = SignedSlotsFile(path)
    for slot in slots:
        file.claim(slot)
    file.close()
    return path.read_bytes()


@pytest.mark.parametrize("torn", [b"7 0", b"7", b"7 0 0 1", b"7 0 0 1 ", b"7 0 0 1 a", b"7 0 \0\0"])
def test_a_torn_line_was_not_signed(tmp_path: Path, torn: bytes) -> None:
    """[B1] It is written before anything is signed, so what is not whole was not."""
    path = tmp_path / "slots"
    path.write_bytes(signed_slots(path, slot(5), slot(5, Phase.CLIP)) + torn)
    slots = SignedSlotsFile(path)
    assert slots.last_step == 5
    slots.claim(slot(7))
    slots.close()
    assert path.read_bytes() == signed_slots(tmp_path / "other", slot(5, Phase.CLIP), slot(7))


def test_a_line_that_lacks_no_more_than_its_end_was_perhaps_signed(tmp_path: Path) -> None:
    """[B1]"""
    path = tmp_path / "slots"
    path.write_bytes(signed_slots(path, slot(5), slot(6)).rstrip(b"\n"))
    assert SignedSlotsFile(path).last_step == 6


def test_no_flipped_byte_lets_a_slot_be_signed_again(tmp_path: Path) -> None:
    """[B1] Every byte, to whatever could pass for another slot or for a torn line: refused, or the last one still counts."""
    path = tmp_path / "slots"
    good = signed_slots(path, *(slot(step) for step in range(7, 12)))
    refused = 0
    for index in range(len(good)):
        for byte in b"0 9\nx\xff-\0":
            flipped = good[:index] + bytes([byte]) + good[index + 1 :]
            path.write_bytes(flipped)
            try:
                slots = SignedSlotsFile(path)
            except SignedSlotsError:
                refused += path.read_bytes() == flipped  # nothing is lost
                continue
            assert slots.last_step == 11, (index, byte)
            slots.close()
    assert refused > 600


def test_an_older_copy_of_the_slots_is_refused(tmp_path: Path) -> None:
    """[B1] The checkpoint says how far this peer had signed."""
    path = tmp_path / "slots"
    old = signed_slots(path, slot(3))
    signed_slots(path, slot(4))
    newest = SignedSlotsFile(path)
    newest.close()
    path.write_bytes(old)
    with pytest.raises(SignedSlotsError, match="older than the last checkpoint"):
        SignedSlotsFile(path, newest.last)
    assert path.read_bytes() == old
    SignedSlotsFile(path).close()


def test_a_damaged_file_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "slots").write_bytes(b"5 0 1\nfive 0 2\n")
    with pytest.raises(SignedSlotsError, match="comes back under a new key"):
        SignedSlotsFile(tmp_path / "slots")


def test_the_file_stays_short(tmp_path: Path) -> None:
    slots = SignedSlotsFile(tmp_path / "slots")
    for step in range(5000):
        slots.claim(slot(step))
    slots.close()
    assert (tmp_path / "slots").stat().st_size < 100_000
    again = SignedSlotsFile(tmp_path / "slots")
    assert again.last_step == 4999
    again.close()


def test_what_cannot_be_written_is_not_signed(tmp_path: Path) -> None:
    slots = SignedSlotsFile(tmp_path / "slots")
    os.close(slots._file)
    slots._file = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(SignedSlotsError, match="nothing is signed"):
        slots.claim(slot(0))
    slots.close()


# Journal


def said(step: int) -> dict[PeerId, Announced]:
    envelope = Envelope(b"payload %d" % step, Signature(bytes(64)))
    return {PeerId(bytes(32)): Announced(PeerId(bytes(32)), None, envelope)}  # type: ignore[arg-type]


def test_lines_are_chained_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN)
    for step in range(3):
        journal.announced(slot(step), said(step))
    journal.close()
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as handle:
        handle.write(b'{"chain": "00')
    again = Journal(tmp_path, RUN)
    again.announced(slot(3), said(3))
    again.close()
    lines = list(read_journal(file))
    assert [line.get("place", [None])[0] for line in lines] == [None, 0, 1, 2, 3]


@pytest.mark.parametrize("change", ["dropped", "swapped", "changed"])
def test_tampering_breaks_the_chain(tmp_path: Path, change: str) -> None:
    journal = Journal(tmp_path, RUN)
    for step in range(4):
        journal.announced(slot(step), said(step))
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
        journal.announced(slot(step), said(step))
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
    wrote = {step: record(step) for step in range(12) if step != gap}
    for step, one in wrote.items():
        journal.recorded([CertifiedRecord(encode_record(one), {bytes(32): bytes([step]) * 64})])
    journal.close()
    certified = Journal(tmp_path, RUN, steps_per_file=5).certified(11)
    first = 5 if gap is None else gap + 1  # the last two files are read
    assert [decode_record(signed.record) for signed in certified] == [wrote[step] for step in range(first, 11)]
    assert [signed.signatures for signed in certified] == [{bytes(32): bytes([step]) * 64} for step in range(first, 11)]
    assert Journal(tmp_path, RUN, steps_per_file=5).certified(20) == []


def written(folder: Path, run: Digest = RUN, steps: int = 6, steps_per_file: int = 100) -> Digest:
    """A journal as peers write it; where its chain ends."""
    journal = Journal(folder, run, steps_per_file=steps_per_file)
    for step in range(steps):
        journal.announced(slot(step)._replace(run=run), said(step))
        journal.recorded([CertifiedRecord(encode_record(record(step)), {bytes(32): bytes([step]) * 64})])
    journal.close()
    return journal.settle()


def damaged(folder: Path, raw: bytes, after: Digest | None) -> str | None:
    """Why a journal of one file is refused; None if it is not. Whatever is refused stays as it is."""
    file = folder / "steps-000000000.jsonl"
    file.write_bytes(raw)
    try:
        Journal(folder, RUN, after=after).close()
    except JournalError as error:
        why = str(error)
    else:
        return None
    assert file.read_bytes() == raw, "nothing is lost"
    return why


def test_every_flipped_byte_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """No traceback, and nothing that was changed is taken for what was agreed on."""
    end, random = written(tmp_path), Random(0)
    good = (tmp_path / "steps-000000000.jsonl").read_bytes()
    slots = [*(random.randrange(len(good)) for _ in range(400)), *range(120), *range(len(good) - 120, len(good))]
    for index in slots:
        byte = random.choice([value for value in range(256) if value != good[index]])
        why = damaged(tmp_path, good[:index] + bytes([byte]) + good[index + 1 :], end)
        assert why is not None, index
        assert "move" in why or "--folder" in why
    assert damaged(tmp_path, good, end) is None


def test_a_journal_that_was_cut_is_refused_wherever_it_was(tmp_path: Path) -> None:
    """The checkpoint knows its end. Without one only what is torn off can be told, and is cut."""
    end = written(tmp_path, steps=2)
    good = (tmp_path / "steps-000000000.jsonl").read_bytes()
    for length in range(len(good)):
        assert "ends before the last checkpoint" in (damaged(tmp_path, good[:length], end) or ""), length
        assert damaged(tmp_path, good[:length], None) is None
        left = tmp_path / "steps-000000000.jsonl"
        assert (left.read_bytes() if left.exists() else b"") == good[: good[:length].rfind(b"\n") + 1]
    left.unlink()
    with pytest.raises(JournalError, match="ends before the last checkpoint"):
        Journal(tmp_path, RUN, after=end)


def test_a_torn_line_after_the_checkpoint_is_cut_and_said(tmp_path: Path) -> None:
    end = written(tmp_path)
    file = tmp_path / "steps-000000000.jsonl"
    good = file.read_bytes()
    file.write_bytes(good + b'{"chain": "00')
    journal = Journal(tmp_path, RUN, after=end)
    assert journal.cut == 13
    assert file.read_bytes() == good
    assert journal.settle() == end
    assert Journal(tmp_path, RUN, after=end).cut == 0


def test_another_runs_journal_is_refused(tmp_path: Path) -> None:
    """Also half of it; and one whose lines are all there, in another order."""
    end = written(tmp_path / "mine")
    written(tmp_path / "other", Digest(bytes(32)))
    mine, other = ((tmp_path / one / "steps-000000000.jsonl").read_bytes() for one in ("mine", "other"))
    assert "another run's journal: choose another folder" in (damaged(tmp_path / "mine", other, None) or "")
    lines, others = mine.splitlines(keepends=True), other.splitlines(keepends=True)
    mixed = b"".join([*lines[:8], *others[8:]])
    assert "line 9: the chain is broken" in (damaged(tmp_path / "mine", mixed, None) or "")
    swapped = b"".join([*lines[:3], lines[4], lines[3], *lines[5:]])
    assert "line 4: the chain is broken" in (damaged(tmp_path / "mine", swapped, end) or "")
    begun = lines[0].replace(RUN.hex().encode(), bytes(32).hex().encode())
    assert "line 1: the chain is broken" in (damaged(tmp_path / "mine", begun + b"".join(lines[1:]), end) or "")


@pytest.mark.parametrize("gone", ["first", "middle", "last", "torn", "later end"])
def test_the_chain_is_followed_from_file_to_file(tmp_path: Path, gone: str) -> None:
    end = written(tmp_path, steps=9, steps_per_file=3)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 3
    expected = {"middle": "line 1: the chain is broken", "last": "ends before", "torn": "not a line"}.get(gone)
    if gone in ("first", "middle", "last"):
        files[["first", "middle", "last"].index(gone)].unlink()
    if gone == "torn":
        files[1].write_bytes(files[1].read_bytes()[:-5])
    if gone == "later end":  # the power went when the next file had just begun
        (tmp_path / "steps-000000009.jsonl").write_bytes(b'{"chain": "')
    if expected is not None:
        with pytest.raises(JournalError, match=expected):
            Journal(tmp_path, RUN, after=end)
        return
    journal = Journal(tmp_path, RUN, after=end, steps_per_file=3)
    assert len(journal.certified(9)) == 6
    journal.announced(slot(9), said(9))
    journal.close()
    Journal(tmp_path, RUN, after=end).close()


def test_what_no_longer_fits_on_the_disk_is_not_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, whole = written(tmp_path), os.write
    journal = Journal(tmp_path, RUN)
    monkeypatch.setattr(os, "write", lambda file, raw: whole(file, raw[: len(raw) // 2]))
    with pytest.raises(JournalError, match="No space left"):
        journal.announced(slot(7), said(7))
    monkeypatch.undo()
    assert journal.settle() == end
    journal.announced(slot(7), said(7))
    journal.close()
    assert Journal(tmp_path, RUN, after=end).cut == 0


def record(step: int) -> StepRecord:
    one, key = Digest(bytes(32)), (bytes([1]) * 32,)
    return StepRecord(step, key, key, key, 1, one, one, one, one, True, step + 1, 1.0, 0.5, 1.0, 1.0, 1.0, ())


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
        monkeypatch.setattr("troth.network.disk.checkpoints._SMALL", 0)
        monkeypatch.setattr("troth.network.disk.checkpoints.write_bytes", self._write)

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


def test_a_checkpoint_knows_how_far_the_other_files_had_come(tmp_path: Path, work: TrainingWork) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, work)
    assert checkpoints.marks() == Marks()
    for step in (1, 2):
        checkpoints.save(state(work, step), Marks(Digest(bytes([step]) * 32), (step, 0, 0, 1)))
    assert Checkpoints(tmp_path, RUN, work).marks() == Marks(Digest(bytes([2]) * 32), (2, 0, 0, 1))


def test_a_flipped_byte_of_a_checkpoint_is_noticed(tmp_path: Path, work: TrainingWork) -> None:
    """What it says is not guessed: the one before counts, or another version of Troth is named."""
    checkpoints, random = Checkpoints(tmp_path, RUN, work), Random(0)
    checkpoints.save(state(work, 1))
    checkpoints.save(state(work, 2))
    file = tmp_path / "step-000000002.json"
    good = file.read_bytes()
    for index in range(0, len(good), 3):
        byte = random.choice([value for value in range(256) if value != good[index]])
        file.write_bytes(good[:index] + bytes([byte]) + good[index + 1 :])
        if (good[index : index + 1] + bytes([byte])).isspace():
            continue
        with suppress(CheckpointError):
            assert checkpoints.last(state(work, 99)).state.step == 1


def test_another_runs_checkpoint_is_refused(tmp_path: Path, work: TrainingWork) -> None:
    Checkpoints(tmp_path, RUN, work).save(state(work, 1))
    with pytest.raises(CheckpointError, match="another run"):
        Checkpoints(tmp_path, Digest(bytes(32)), work).last(state(work, 0))
