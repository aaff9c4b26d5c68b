"""Numbers in received bytes, wherever their sender chose to put them."""

import numpy as np
import pytest
import torch

from troth.crypto import blob_digest
from troth.kernels import LARGE
from troth.protocol.core.parts import ProvenPart, rows_of
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.primitives import Primitives


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("count", [5, LARGE + 3])
def test_numbers_are_read_alike_from_every_place_in_a_message(offset: int, count: int) -> None:
    """A liar chooses what stands before a blob, and so whether its numbers are aligned; loops and tensors need them to be."""
    numbers_D = np.linspace(-1, 1, count, dtype=np.float32)
    message = bytearray(offset) + numbers_D.tobytes()
    blob, right = Blob(memoryview(message)[offset:]), Blob.of(torch.from_numpy(numbers_D))
    assert blob.array_D.flags.aligned
    assert blob.digest == right.digest == blob_digest(numbers_D.tobytes())
    assert torch.equal(blob.numbers_D(), right.numbers_D())
    assert torch.equal(rows_of([ProvenPart(blob, ())]), rows_of([ProvenPart(right, ())]))
    assert Primitives().aggregate_norm(blob) == Primitives().aggregate_norm(right)
    assert torch.equal(Primitives().joined([blob, blob]), Primitives().joined([right, right]))
