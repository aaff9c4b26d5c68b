"""A state in chunks: the digest commits to the index, and the index to every chunk (SPEC J1)."""

import msgspec
import pytest
import torch

from troth.crypto import CHUNK_BYTES, Digest, stream
from troth.protocol.wire.blob import decode_index, encode_index, index_of
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem
from troth.training.optimizers import SGD, AdamW, Optimizer, constant
from troth.training.tasks.synthetic import Quadratic
from troth.training.work import CollectedState, Training, TrainingWork, state_digest

SIZE = CHUNK_BYTES // 4 * 2 + 3  # numbers: three chunks, of which the last is short


@pytest.fixture(scope="module", params=[SGD(), AdamW()], ids=["sgd", "adamw"])
def work(request: pytest.FixtureRequest) -> TrainingWork:
    optimizer: Optimizer = request.param
    return TrainingWork(Problem(Quadratic(dimension=8)), optimizer, constant(0.1, 10), Primitives())


@pytest.fixture(scope="module")
def training(work: TrainingWork) -> Training:
    parameters_D = torch.from_numpy(stream(0, "state").uniform(SIZE)).float()
    first = work.first(1)
    filled = {name: torch.arange(SIZE if len(v) == 8 else len(v), dtype=v.dtype) for name, v in first.optimizer.items()}
    return Training(parameters_D, filled)


def _collected(work: TrainingWork, training: Training) -> CollectedState:
    collected = work.collect(work.index(training), work.digest(training))
    assert isinstance(collected, CollectedState)
    return collected


def _chunk(work: TrainingWork, training: Training, number: int) -> memoryview:
    chunk = work.chunk(training, number)
    assert chunk is not None
    return chunk


def test_index_and_digest_are_hashed_once_and_are_those_of_the_vectors(work: TrainingWork, training: Training) -> None:
    """[J1, U5] Whether the digest was asked for before the index or not."""
    again = Training(training.parameters_D.clone(), {name: v.clone() for name, v in training.optimizer.items()})
    plain = work.index(again)
    assert work.digest(again) == state_digest(again) == work.digest(training)
    assert work.index(again) == plain == encode_index(index_of(training.named))
    assert work.index(again) is work.index(again), "as it was computed with the digest"


def test_chunks_in_any_order_make_the_state(work: TrainingWork, training: Training) -> None:
    """[J1] Bit for bit, whoever sent which."""
    collected = _collected(work, training)
    count = len(collected.missing)
    assert count >= 2 * 3
    assert work.chunk(training, count) is None
    for number in reversed(range(count)):
        assert collected.put(number, _chunk(work, training, number))
        assert collected.put(number, _chunk(work, training, number)), "twice is no lie"
    assert collected.missing == set()
    assert work.digest(collected.state()) == work.digest(training)


def test_a_wrong_chunk_is_refused(work: TrainingWork, training: Training) -> None:
    """[J1] Another's, a shorter, a longer one, one with a changed byte, one that does not exist."""
    collected = _collected(work, training)
    first = bytes(_chunk(work, training, 0))
    chunks = ((k, bytes(_chunk(work, training, k))) for k in sorted(collected.missing))
    one, right = next((k, chunk) for k, chunk in chunks if chunk != first)
    for number, wrong in (
        (0, right),
        (one, right[:-1]),
        (one, right + b"\0"),
        (one, right[:-1] + bytes([right[-1] ^ 1])),
        (one, b""),
        (len(collected.missing), right),
    ):
        before = set(collected.missing)
        assert not collected.put(number, memoryview(wrong))
        assert collected.missing == before


def test_an_index_counts_only_if_the_digest_follows_from_it(work: TrainingWork, training: Training) -> None:
    """[J1] Every byte of it: none can be changed."""
    raw, digest = work.index(training), work.digest(training)
    assert isinstance(work.collect(raw, Digest(bytes(32))), Malformed)
    for place in {*range(0, len(raw), 7), len(raw) - 1}:
        changed = bytes([*raw[:place], raw[place] ^ 1, *raw[place + 1 :]])
        assert isinstance(work.collect(changed, digest), Malformed), place
    assert isinstance(work.collect(raw + b"\0", digest), Malformed)


@pytest.mark.parametrize(
    "index",
    [
        [["parameters", "torch.float32", 1 << 39, [bytes(32)]]],  # would take 2 TB
        [["b", "torch.float32", 1, [bytes(32)]], ["a", "torch.float32", 1, [bytes(32)]]],
        [["a", "torch.float32", 1, [bytes(32)]]] * 2,
        [["a", "torch.int64", 1, [bytes(32)]]],
        [["a", "torch.float32", -1, []]],
        [["a", "torch.float32", 1, [bytes(31)]]],
        [[str(number), "torch.float32", 0, []] for number in range(100)],
        {"a": 1},
    ],
)
def test_a_hostile_index_takes_no_memory(index: object) -> None:
    assert isinstance(decode_index(msgspec.msgpack.encode(index)), Malformed)
