"""The journal: everything that was agreed on, torn, tampered with, full."""

import json
import os
from pathlib import Path
from random import Random

import pytest

from tests.network.disk.slots import RUN, slot
from troth.crypto import Digest, PeerId, Signature
from troth.network.disk.journal import Journal, read_journal
from troth.network.disk.lock import DiskError
from troth.protocol.core.records import StepRecord, decode_record, encode_record
from troth.protocol.history import Begin, Said
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Announced, Envelope

KEY = PeerId(bytes([1]) * 32)


def announcements(step: int) -> dict[PeerId, Announced]:
    """One peer's announcement."""
    envelope = Envelope(b"payload %d" % step, Signature(bytes(64)))
    return {KEY: Announced(KEY, None, envelope)}  # type: ignore[arg-type]


def record(step: int) -> StepRecord:
    one, key = Digest(bytes(32)), (bytes([1]) * 32,)
    return StepRecord(step, key, key, key, 1, one, one, one, one, True, step + 1, 1.0, 0.5, 1.0, 1.0, 1.0, ())


def test_lines_are_chained_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN)
    for step in range(3):
        journal.announced(slot(step), announcements(step))
    journal.close()
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as handle:
        handle.write(b'{"chain": "00')
    again = Journal(tmp_path, RUN)
    again.announced(slot(3), announcements(3))
    again.close()
    lines = list(read_journal(file))
    assert [line.step if isinstance(line, Said) else None for line in lines] == [None, 0, 1, 2, 3]


@pytest.mark.parametrize("change", ["dropped", "swapped", "changed"])
def test_tampering_breaks_the_chain(tmp_path: Path, change: str) -> None:
    journal = Journal(tmp_path, RUN)
    for step in range(4):
        journal.announced(slot(step), announcements(step))
    journal.close()
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_text().splitlines()
    if change == "dropped":
        del lines[2]
    elif change == "swapped":
        lines[2], lines[3] = lines[3], lines[2]
    else:
        assert '"slot": [1,' in lines[2]
        lines[2] = lines[2].replace('"slot": [1,', '"slot": [9,')
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DiskError, match="line 3: the chain is broken"):
        list(read_journal(file))


def test_old_files_go_and_the_chain_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, RUN, steps_per_file=2, keep_files=3)
    for step in range(20):
        journal.announced(slot(step), announcements(step))
    journal.close()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert [file.stem for file in files] == ["steps-000000014", "steps-000000016", "steps-000000018"]
    last_of = [json.loads(file.read_text().splitlines()[-1])["chain"] for file in files]
    heads = [begin.after.hex() for file in files if isinstance(begin := next(read_journal(file)), Begin)]
    assert heads[1:] == last_of[:-1]


@pytest.mark.parametrize("gap", [None, 7])
def test_records_are_found_again_for_those_who_were_gone(tmp_path: Path, gap: int | None) -> None:
    """[B5] Up to the last one, as far back as nothing is missing."""
    journal = Journal(tmp_path, RUN, steps_per_file=5)
    wrote = {step: record(step) for step in range(12) if step != gap}
    for step, one in wrote.items():
        journal.recorded([CertifiedRecord(encode_record(one), {KEY: bytes([step]) * 64})])
    journal.close()
    certified = Journal(tmp_path, RUN, steps_per_file=5).certified(11)
    first = 5 if gap is None else gap + 1  # the last two files are read
    assert [decode_record(signed.record) for signed in certified] == [wrote[step] for step in range(first, 11)]
    assert [signed.signatures for signed in certified] == [{KEY: bytes([step]) * 64} for step in range(first, 11)]
    assert Journal(tmp_path, RUN, steps_per_file=5).certified(20) == []


def write_journal(folder: Path, run: Digest = RUN, steps: int = 6, steps_per_file: int = 100) -> Digest:
    """A journal as peers write it; where its chain ends."""
    journal = Journal(folder, run, steps_per_file=steps_per_file)
    for step in range(steps):
        journal.announced(slot(step)._replace(run=run), announcements(step))
        journal.recorded([CertifiedRecord(encode_record(record(step)), {KEY: bytes([step]) * 64})])
    journal.close()
    return journal.settle()


def refusal(folder: Path, raw: bytes, after: Digest | None) -> str | None:
    """Why a journal of one file is refused; None if it is not. Whatever is refused stays as it is."""
    file = folder / "steps-000000000.jsonl"
    file.write_bytes(raw)
    try:
        Journal(folder, RUN, after=after).close()
    except DiskError as error:
        why = str(error)
    else:
        return None
    assert file.read_bytes() == raw, "nothing is lost"
    return why


def test_every_flipped_byte_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """No traceback, and nothing that was changed is taken for what was agreed on."""
    end, random = write_journal(tmp_path), Random(0)
    good = (tmp_path / "steps-000000000.jsonl").read_bytes()
    slots = [*(random.randrange(len(good)) for _ in range(400)), *range(120), *range(len(good) - 120, len(good))]
    for index in slots:
        byte = random.choice([value for value in range(256) if value != good[index]])
        why = refusal(tmp_path, good[:index] + bytes([byte]) + good[index + 1 :], end)
        assert why is not None, index
        assert "move" in why or "choose another folder" in why
    assert refusal(tmp_path, good, end) is None


@pytest.mark.long
def test_a_journal_that_was_cut_is_refused_wherever_it_was(tmp_path: Path) -> None:
    """The checkpoint knows its end. Without one only what is torn off can be told, and is cut."""
    end = write_journal(tmp_path, steps=2)
    good = (tmp_path / "steps-000000000.jsonl").read_bytes()
    for length in range(len(good)):
        assert "ends before the last checkpoint" in (refusal(tmp_path, good[:length], end) or ""), length
        assert refusal(tmp_path, good[:length], None) is None
        left = tmp_path / "steps-000000000.jsonl"
        assert (left.read_bytes() if left.exists() else b"") == good[: good[:length].rfind(b"\n") + 1]
    left.unlink()
    with pytest.raises(DiskError, match="ends before the last checkpoint"):
        Journal(tmp_path, RUN, after=end)


def test_a_checkpoint_from_before_the_first_line_fits_any_journal(tmp_path: Path) -> None:
    """[B5] A peer that stops before anything was agreed on has written a checkpoint, and no line."""
    empty = Journal(tmp_path, RUN).settle()
    Journal(tmp_path, RUN, after=empty).close()
    journal = Journal(tmp_path, RUN, after=empty)
    journal.announced(slot(0), announcements(0))
    journal.close()
    Journal(tmp_path, RUN, after=empty).close()
    with pytest.raises(DiskError, match="ends before the last checkpoint"):
        Journal(tmp_path / "elsewhere", RUN, after=Digest(bytes(32)))


def test_a_torn_line_after_the_checkpoint_is_cut_and_said(tmp_path: Path) -> None:
    end = write_journal(tmp_path)
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
    end = write_journal(tmp_path / "mine")
    write_journal(tmp_path / "other", Digest(bytes(32)))
    mine, other = ((tmp_path / one / "steps-000000000.jsonl").read_bytes() for one in ("mine", "other"))
    assert "another run's journal: choose another folder" in (refusal(tmp_path / "mine", other, None) or "")
    lines, others = mine.splitlines(keepends=True), other.splitlines(keepends=True)
    mixed = b"".join([*lines[:8], *others[8:]])
    assert "line 9: the chain is broken" in (refusal(tmp_path / "mine", mixed, None) or "")
    swapped = b"".join([*lines[:3], lines[4], lines[3], *lines[5:]])
    assert "line 4: the chain is broken" in (refusal(tmp_path / "mine", swapped, end) or "")
    begun = lines[0].replace(RUN.hex().encode(), bytes(32).hex().encode())
    assert "line 1: the chain is broken" in (refusal(tmp_path / "mine", begun + b"".join(lines[1:]), end) or "")


@pytest.mark.parametrize("gone", ["first", "middle", "last", "torn", "later end"])
def test_the_chain_is_followed_from_file_to_file(tmp_path: Path, gone: str) -> None:
    end = write_journal(tmp_path, steps=9, steps_per_file=3)
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
        with pytest.raises(DiskError, match=expected):
            Journal(tmp_path, RUN, after=end)
        return
    journal = Journal(tmp_path, RUN, after=end, steps_per_file=3)
    assert len(journal.certified(9)) == 6
    journal.announced(slot(9), announcements(9))
    journal.close()
    Journal(tmp_path, RUN, after=end).close()


def test_a_line_that_does_not_fit_on_the_disk_is_not_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, whole = write_journal(tmp_path), os.write
    journal = Journal(tmp_path, RUN)
    monkeypatch.setattr(os, "write", lambda file, raw: whole(file, raw[: len(raw) // 2]))
    with pytest.raises(DiskError, match="No space left"):
        journal.announced(slot(7), announcements(7))
    monkeypatch.undo()
    assert journal.settle() == end
    journal.announced(slot(7), announcements(7))
    journal.close()
    assert Journal(tmp_path, RUN, after=end).cut == 0
