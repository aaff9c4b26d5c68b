"""Vectors of earlier steps in files: the same numbers for everyone who holds them (SPEC K1)."""

import gc
from pathlib import Path

import pytest
import torch

from troth.protocol.wire.blob import Blob
from troth.resting import give_back_pages, rest, resting


@pytest.fixture(autouse=True)
def _small_vectors_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troth.resting.RESTS_FROM", 1000)


def test_a_resting_vector_is_the_same_object_with_the_same_numbers(tmp_path: Path) -> None:
    vectors = [torch.randn(5000), torch.randn(3000, dtype=torch.float64), torch.randn(999)]
    copies, memory = [vector.clone() for vector in vectors], [vector.data_ptr() for vector in vectors]
    holders = list(vectors)
    for _ in range(3):  # again after they were read
        rest(vectors, tmp_path)
        assert all(torch.equal(*pair) for pair in zip(holders, copies, strict=True))
    moved = [vector.data_ptr() != before for vector, before in zip(vectors, memory, strict=True)]
    assert moved == [True, True, False], "a small one stays in memory"
    assert list(tmp_path.iterdir()) == [], "files without names leave nothing behind"


def test_blobs_that_settled_in_a_vector_rest_with_it(tmp_path: Path) -> None:
    """Else the aggregates that late members may ask for would stay in memory."""
    numbers_D, whole_D = torch.randn(4000), torch.empty(4000)
    blobs = Blob.cut(numbers_D.clone(), (0, 1500, 4000))
    digests = [blob.digest for blob in blobs]
    for blob, start in zip(blobs, (0, 1500), strict=True):
        blob.settle(whole_D, start)
    rest([whole_D], tmp_path)
    assert [Blob(blob.view).digest for blob in blobs] == digests
    assert torch.equal(torch.cat([blob.numbers_D() for blob in blobs]), numbers_D)
    assert blobs[0].numbers_D().data_ptr() == whole_D.data_ptr()


def test_vectors_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    gc.collect()
    before, kept = resting(), torch.randn(2000)
    for _ in range(5):
        rest([kept, torch.randn(2000)], tmp_path)
    assert resting() == before + 1


def test_pages_are_given_back_and_read_again(tmp_path: Path) -> None:
    vector_D = torch.randn(1 << 20)
    copy_D = vector_D.clone()
    rest([vector_D], tmp_path)
    assert not _resident_kb(vector_D)
    assert torch.equal(vector_D, copy_D)
    assert _resident_kb(vector_D) == 4096
    give_back_pages()
    assert not _resident_kb(vector_D)
    assert torch.equal(vector_D, copy_D)


def _resident_kb(vector_D: torch.Tensor) -> int:
    """Memory of the map that the vector lies in."""
    begin = f"{vector_D.data_ptr():x}-"
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    next(line for line in lines if line.startswith(begin))
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def test_a_full_disk_leaves_the_vector_where_it_was(tmp_path: Path) -> None:
    vector_D = torch.randn(2000)
    copy_D = vector_D.clone()
    with pytest.raises(OSError, match="No such file"):
        rest([vector_D], tmp_path / "gone")
    assert torch.equal(vector_D, copy_D)
