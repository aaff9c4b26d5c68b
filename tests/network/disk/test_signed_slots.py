"""The slots that a peer has signed, on disk: torn, tampered with, full."""

import errno
import os
from pathlib import Path

import pytest

from tests.network.disk.slots import slot
from troth.crypto import Slot
from troth.network.disk.lock import DiskError
from troth.network.disk.signing import SignedSlotsFile
from troth.protocol.broadcast.link import SignedBeforeError
from troth.protocol.wire.frames import Ready, RestartCertificate
from troth.protocol.wire.messages import Phase


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


def test_a_restart_is_remembered(tmp_path: Path) -> None:
    """[B1, B5] A step that is made again has slots of its own; and the proof that it began lasts as they do."""
    slots = SignedSlotsFile(tmp_path / "slots")
    begun = RestartCertificate(3, bytes(32), 1, {bytes(32): Ready(3, bytes(64))})
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


def write_slots(path: Path, *slots: Slot) -> bytes:
    """A file in which these were claimed."""
    file = SignedSlotsFile(path)
    for one in slots:
        file.claim(one)
    file.close()
    return path.read_bytes()


@pytest.mark.parametrize("torn", [b"7 0", b"7", b"7 0 0 1", b"7 0 0 1 ", b"7 0 0 1 a", b"7 0 \0\0"])
def test_a_torn_line_was_not_signed(tmp_path: Path, torn: bytes) -> None:
    """[B1] It is written before anything is signed, so what is not whole was not."""
    path = tmp_path / "slots"
    path.write_bytes(write_slots(path, slot(5), slot(5, Phase.CLIP)) + torn)
    slots = SignedSlotsFile(path)
    assert slots.last_step == 5
    slots.claim(slot(7))
    slots.close()
    assert path.read_bytes() == write_slots(tmp_path / "other", slot(5, Phase.CLIP), slot(7))


def test_a_line_that_lacks_no_more_than_its_end_was_perhaps_signed(tmp_path: Path) -> None:
    """[B1]"""
    path = tmp_path / "slots"
    path.write_bytes(write_slots(path, slot(5), slot(6)).rstrip(b"\n"))
    assert SignedSlotsFile(path).last_step == 6


def test_no_flipped_byte_lets_a_slot_be_signed_again(tmp_path: Path) -> None:
    """[B1] Every byte, to whatever could pass for another slot or for a torn line: refused, or the last one still counts."""
    path = tmp_path / "slots"
    good = write_slots(path, *(slot(step) for step in range(7, 12)))
    refused = 0
    for index in range(len(good)):
        for byte in b"0 9\nx\xff-\0":
            flipped = good[:index] + bytes([byte]) + good[index + 1 :]
            path.write_bytes(flipped)
            try:
                slots = SignedSlotsFile(path)
            except DiskError:
                refused += path.read_bytes() == flipped  # nothing is lost
                continue
            assert slots.last_step == 11, (index, byte)
            slots.close()
    assert refused > 600


def test_an_older_copy_of_the_slots_is_refused(tmp_path: Path) -> None:
    """[B1] The checkpoint says how far this peer had signed."""
    path = tmp_path / "slots"
    old = write_slots(path, slot(3))
    write_slots(path, slot(4))
    newest = SignedSlotsFile(path)
    newest.close()
    path.write_bytes(old)
    with pytest.raises(DiskError, match="older than the last checkpoint"):
        SignedSlotsFile(path, newest.last)
    assert path.read_bytes() == old
    SignedSlotsFile(path).close()


def test_a_damaged_file_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "slots").write_bytes(b"5 0 1\nfive 0 2\n")
    with pytest.raises(DiskError, match="comes back under a new key"):
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


def test_a_slot_that_cannot_be_written_is_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _line: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    slots = SignedSlotsFile(tmp_path / "slots")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskError, match="nothing is signed"):
        slots.claim(slot(0))
    monkeypatch.undo()
    slots.close()
    assert SignedSlotsFile(tmp_path / "slots").last_step == -1


def test_a_slot_of_which_half_a_line_is_written_is_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[B1] As a disk becomes full: the half is not read again, so after a restart the slot would be signed a second time."""
    write = os.write
    slots = SignedSlotsFile(tmp_path / "slots")
    slots.claim(slot(3))
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[: len(line) // 2]))
    with pytest.raises(DiskError, match="nothing is signed"):
        slots.claim(slot(4))
    monkeypatch.undo()
    again = SignedSlotsFile(tmp_path / "slots")
    assert again.last_step == 3
    again.close()
    slots.close()


def test_what_follows_half_a_line_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    slots = SignedSlotsFile(tmp_path / "slots")
    slots.claim(slot(3))
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[: len(line) // 2]))
    with pytest.raises(DiskError):
        slots.claim(slot(4))
    monkeypatch.undo()
    slots.claim(slot(5))
    slots.close()
    assert SignedSlotsFile(tmp_path / "slots").last_step == 5


def test_a_file_that_cannot_begin_anew_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the peer would end with a complaint about a handle that is closed, which may be another file's by then."""

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    slots = SignedSlotsFile(tmp_path / "slots")
    for step in range(4096):
        slots.claim(slot(step))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        slots.claim(slot(4096))
    monkeypatch.undo()
    slots.claim(slot(4096))
    slots.close()
    assert SignedSlotsFile(tmp_path / "slots").last_step == 4096
