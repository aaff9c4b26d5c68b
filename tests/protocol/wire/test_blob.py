"""Blobs that lie elsewhere than where they came, or anywhere in a message: the same bytes, digest and numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troth.clip.kernels import LARGE
from troth.crypto import blob_digest
from troth.protocol.core.parts import ProvenPart, rows_of
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.primitives import Primitives

# D coordinates

_BLOBS = ("troth.protocol.core.parts.SETTLES_BYTES", "troth.protocol.wire.primitives.SETTLES_BYTES")
numbers = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
rows = st.integers(1, 9).flatmap(lambda d: st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=1, max_size=5))


def blobs_of(values: list[list[float]]) -> list[Blob]:
    return [Blob(np.array(row, "<f4").tobytes()) for row in values]


@given(rows)
def test_a_settled_blob_has_the_same_bytes_digest_and_numbers(values: list[list[float]]) -> None:
    before, after = blobs_of(values), blobs_of(values)
    width = len(values[0])
    whole_D = torch.empty(width * len(values))
    for row, blob in enumerate(after):
        blob.settle(whole_D, row * width)
    for one, other in zip(before, after, strict=True):
        assert one == other
        assert (one.digest, len(one), bytes(one.view)) == (other.digest, len(other), bytes(other.view))
        assert np.array_equal(one.numbers_D().numpy().view("u4"), other.numbers_D().numpy().view("u4"))
    assert bytes(whole_D.numpy().data.cast("B")) == b"".join(bytes(blob.view) for blob in before)


@pytest.mark.parametrize("settles", [0, 1 << 60])
def test_rows_and_joined_aggregates_are_the_same_where_large_blobs_settle(
    settles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[C3] A part that is not finite counts as zeros, and is still the part that was committed to."""
    for name in _BLOBS:
        monkeypatch.setattr(name, settles)
    values = [[1.0, 2.0, 3.0], [4.0, float("nan"), 5.0], [6.0, 1e-45, 7.0]]
    blobs = blobs_of(values)
    raw = [bytes(blob.view) for blob in blobs]
    rows_PD = rows_of([ProvenPart(blob, ()) for blob in blobs])
    assert rows_PD.tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [6.0, 0.0, 7.0]]
    assert [bytes(blob.view) for blob in blobs] == raw
    plain = blobs_of([[1.0, 2.0], [3.0, 4.0]])
    assert Primitives().joined(plain).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert [blob.numbers_D().tolist() for blob in plain] == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("count", [5, LARGE + 3])
def test_numbers_are_read_alike_from_every_place_in_a_message(offset: int, count: int) -> None:
    """A liar chooses what stands before a blob, and so whether its numbers are aligned; loops and tensors need them to be."""
    numbers_D = np.linspace(-1, 1, count, dtype=np.float32)
    message = bytearray(offset) + numbers_D.tobytes()
    blob, right = Blob(memoryview(message)[offset:]), Blob.of(torch.from_numpy(numbers_D))
    array_D = blob.array_D()
    assert array_D is not None
    assert array_D.flags.aligned
    assert blob.digest == right.digest == blob_digest(numbers_D.tobytes())
    assert torch.equal(blob.numbers_D(), right.numbers_D())
    assert torch.equal(rows_of([ProvenPart(blob, ())]), rows_of([ProvenPart(right, ())]))
    assert Primitives().aggregate_norm(blob) == Primitives().aggregate_norm(right)
    assert torch.equal(Primitives().joined([blob, blob]), Primitives().joined([right, right]))
