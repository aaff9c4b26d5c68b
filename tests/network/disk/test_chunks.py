"""Chunks of a state on disk: a download that was cut off goes on from them, whatever was done to the files (SPEC J1)."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troth.crypto import CHUNK_BYTES, Digest
from troth.network.disk.chunks import ChunkFiles
from troth.protocol.recovery.download import Download
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

SIZE = 3 * CHUNK_BYTES // 4 + 100  # three chunks and a short one, of the parameters and of the momentum
WORK = TrainingWork(
    Problem(make_task(f"quadratic:dimension={SIZE}")), OPTIMIZERS["sgd"](), SCHEDULES["constant"](0.1, 10), Primitives()
)
STATE = Training(torch.arange(SIZE, dtype=torch.float32), {"momentum": torch.arange(SIZE, dtype=torch.float32) + 7})
DIGEST, INDEX = WORK.digest(STATE), WORK.index(STATE)
COUNT = 8


def _chunk(number: int) -> memoryview:
    chunk = WORK.chunk(STATE, number)
    assert chunk is not None
    return chunk


def _kept(folder: Path, numbers: range | list[int]) -> ChunkFiles:
    files = ChunkFiles(folder)
    files.begin(DIGEST, INDEX)
    for number in numbers:
        files.put(DIGEST, number, _chunk(number))
    files.close()
    return files


def _recalled(folder: Path) -> int | None:
    """Bytes that are missing, for the next process."""
    download = Download(DIGEST, partial(WORK.collect, digest=DIGEST), ChunkFiles(folder))
    download.recall()
    return download.missing


def _bytes(numbers: list[int]) -> int:
    return sum(len(_chunk(number)) for number in numbers)


@pytest.mark.parametrize("numbers", [[], [0], [3], [7], [6, 2, 3], list(range(COUNT))])
def test_what_came_before_a_crash_is_here_after_it(tmp_path: Path, numbers: list[int]) -> None:
    """[J1] In whatever order; the short ones too."""
    _kept(tmp_path / "download", numbers)
    assert ChunkFiles(tmp_path / "download").begun == DIGEST
    assert _recalled(tmp_path / "download") == 2 * 4 * SIZE - _bytes(numbers)


def test_a_whole_state_is_the_one_that_was_sent(tmp_path: Path) -> None:
    """[J1] Bit for bit."""
    files = _kept(tmp_path, range(COUNT))
    assert files.index(DIGEST) == INDEX
    collected = WORK.collect(INDEX, DIGEST)
    assert not isinstance(collected, Malformed)
    lengths = {number: len(_chunk(number)) for number in range(COUNT)}
    assert all(collected.put(number, chunk) for number, chunk in files.chunks(DIGEST, lengths))
    assert WORK.digest(collected.state()) == DIGEST


def test_another_process_goes_on_adding(tmp_path: Path) -> None:
    """[J1] And the one after it has the chunks of both."""
    _kept(tmp_path, [0, 1])
    again = ChunkFiles(tmp_path)
    assert again.index(DIGEST) == INDEX
    again.put(DIGEST, 5, _chunk(5))
    again.close()
    assert _recalled(tmp_path) == 2 * 4 * SIZE - _bytes([0, 1, 5])


@pytest.mark.long
@given(where=st.integers(0, COUNT * CHUNK_BYTES), raw=st.binary(min_size=1, max_size=64), cut=st.booleans())
def test_a_torn_or_tampered_file_costs_chunks_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, *, where: int, raw: bytes, cut: bool
) -> None:
    """[J1] Whatever is written into it, wherever it ends."""
    folder = tmp_path_factory.mktemp("chunks")
    _kept(folder, range(COUNT))
    (path,) = folder.glob("*.chunks")
    if cut:
        os.truncate(path, where)
    else:
        with path.open("rb+") as file:
            file.seek(where)
            file.write(raw)
    first, last = where // CHUNK_BYTES, (where + len(raw) - 1) // CHUNK_BYTES
    touched = [n for n in range(COUNT) if (n >= first if cut else first <= n <= last)]
    missing = _recalled(folder)
    assert missing is not None
    assert missing <= _bytes(touched), "chunks elsewhere are still here"


@pytest.mark.parametrize("raw", [b"", b"\x90", b"nonsense", INDEX[:-1], INDEX + b"\0", bytes(len(INDEX))])
def test_a_damaged_index_is_no_index(tmp_path: Path, raw: bytes) -> None:
    """[J1] The download begins anew."""
    _kept(tmp_path, range(COUNT))
    (path,) = tmp_path.glob("*.index")
    path.write_bytes(raw)
    assert _recalled(tmp_path) is None


def test_one_state_at_a_time(tmp_path: Path) -> None:
    """[J1] Chunks of a state that is not wanted any more are deleted, and so are all when it is saved."""
    files, other = _kept(tmp_path, [1]), Digest(b"o" * 32)
    files.begin(other, b"index")
    files.put(DIGEST, 0, _chunk(0))  # late
    assert {path.stem for path in tmp_path.iterdir()} == {other.hex()}
    files.clear()
    assert list(tmp_path.iterdir()) == []
    assert files.begun is None
    assert _recalled(tmp_path) is None


@pytest.mark.parametrize("name", ["nonsense.index", "00.index", "..index", f"{'0' * 63}.index"])
def test_files_with_other_names_are_nobodys(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(INDEX)
    assert ChunkFiles(tmp_path).begun is None


def test_a_disk_that_cannot_be_written_to_costs_the_chunks_and_not_the_download(tmp_path: Path) -> None:
    """[J1] And people are told."""
    (tmp_path / "download").write_text("a file where the folder should be")
    told: list[str] = []
    files = ChunkFiles(tmp_path / "download", told.append)
    files.begin(DIGEST, INDEX)
    files.put(DIGEST, 0, _chunk(0))
    assert files.index(DIGEST) is None
    assert [text.split(":")[0] for text in told] == [f"cannot keep the download in {tmp_path / 'download'}"]
