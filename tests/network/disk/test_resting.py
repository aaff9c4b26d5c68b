"""Vectors of earlier steps in files: the same numbers for everyone who holds them (SPEC K1)."""

from pathlib import Path

import pytest
import torch

from troth.network.disk.resting import RestingVectors
from troth.protocol.wire.blob import Blob


@pytest.fixture(autouse=True)
def _small_vectors_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troth.network.disk.resting.RESTS_FROM", 1000)


def test_a_resting_vector_is_the_same_object_with_the_same_numbers(tmp_path: Path) -> None:
    resting = RestingVectors(tmp_path)
    vectors = [torch.randn(5000), torch.randn(3000, dtype=torch.float64), torch.randn(999)]
    copies, memory = [vector.clone() for vector in vectors], [vector.data_ptr() for vector in vectors]
    holders = list(vectors)
    for _ in range(3):  # again after they were read
        resting.rest(vectors)
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
    resting = RestingVectors(tmp_path)
    resting.rest([whole_D])
    assert [Blob(blob.view).digest for blob in blobs] == digests
    assert torch.equal(torch.cat([blob.numbers_D() for blob in blobs]), numbers_D)
    assert blobs[0].numbers_D().data_ptr() == whole_D.data_ptr()


def test_vectors_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    resting = RestingVectors(tmp_path)
    kept = torch.randn(2000)
    for _ in range(5):
        resting.rest([kept, torch.randn(2000)])
    assert resting.count == 2, "the one that is kept, and the last that was given"
    resting.rest([kept])
    assert resting.count == 1


def test_a_full_disk_leaves_the_vector_where_it_was(tmp_path: Path) -> None:
    vector_D = torch.randn(2000)
    copy_D = vector_D.clone()
    with pytest.raises(OSError, match="No such file"):
        RestingVectors(tmp_path / "gone").rest([vector_D])
    assert torch.equal(vector_D, copy_D)
