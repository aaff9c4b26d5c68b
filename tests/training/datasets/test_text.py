"""Text as bytes and as words."""

import gzip
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from troth.training import TaskError
from troth.training.datasets import FIRST_BYTE, FIRST_WORD, chunks, encoded, most_frequent, read_text, read_words

CONTENT = b"The cat sat on the mat. The dog, 42 years old, sat on the cat! \xc3\x84pfel\n" * 20


@pytest.mark.parametrize(("name", "pack"), [("t.txt", bytes), ("t.gz", gzip.compress), ("t.txt.xz", lzma.compress)])
def test_plain_and_packed(name: str, pack: object, tmp_path: Path) -> None:
    assert callable(pack)
    (tmp_path / name).write_bytes(pack(CONTENT))
    found = read_text(tmp_path / name)
    assert isinstance(found, np.memmap)
    assert found.tobytes() == CONTENT


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no text at .*nowhere \(data=… takes a file"):
        read_text(tmp_path / "nowhere")
    (tmp_path / "some.txt").write_bytes(CONTENT)
    with pytest.raises(TaskError, match=r"it is a folder, name a file in it \(some\.txt\)"):
        read_words(tmp_path, 300)


def test_an_empty_or_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(TaskError, match="holds 0 bytes of text"):
        read_text(tmp_path / "empty.txt")
    for ending, pack in ((".gz", gzip.compress), (".xz", lzma.compress)):
        for k, damaged in enumerate((pack(CONTENT)[:-9], b"no such format", pack(CONTENT)[:20] + bytes(30))):
            file = tmp_path / f"{k}{ending}"
            file.write_bytes(damaged)
            with pytest.raises(TaskError, match="cannot be unpacked"):
                read_text(file)


def spelled(numbers: list[int], vocabulary: list[bytes]) -> list[bytes]:
    return [bytes([k - FIRST_BYTE]) if k < FIRST_WORD else vocabulary[k - FIRST_WORD] for k in numbers]


def test_words(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(CONTENT)
    numbers = read_words(tmp_path / "t.txt", FIRST_WORD + 3)
    assert isinstance(numbers, np.memmap)
    assert numbers.max() < FIRST_WORD + 3
    vocabulary = [b"the", b"cat", b"on"]  # four times, twice and twice a line; `sat` comes after `on`
    first = b"the | cat | s a t | on | the | m a t . | the | d o g , 4 2 y e a r s o l d , s a t | on | the | cat | !"
    assert spelled(numbers[:34].tolist(), vocabulary) == first.replace(b"|", b"").split()
    assert b"".join(spelled(numbers.tolist(), vocabulary)) == b"".join(CONTENT.lower().split())


def test_words_are_the_same_packed_and_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(CONTENT)
    (tmp_path / "a.gz").write_bytes(gzip.compress(CONTENT))
    assert read_words(tmp_path / "a.txt", 300).tobytes() == read_words(tmp_path / "a.gz", 300).tobytes()


def test_the_vocabulary_has_a_fixed_order() -> None:
    counted = Counter({b"zz": 2, b"aa": 2, b"b": 9, b"cc": 3})
    assert most_frequent(counted, 2) == [b"cc", b"aa"]
    assert most_frequent(Counter(dict(reversed(counted.items()))), 3) == [b"cc", b"aa", b"zz"]


def test_a_word_without_a_number_is_spelled() -> None:
    assert encoded([b"ab", b"cd"], {b"cd": 999}) == [FIRST_BYTE + ord("a"), FIRST_BYTE + ord("b"), 999]


@pytest.mark.parametrize("vocabulary", [259, 65537])
def test_sizes_of_vocabularies(vocabulary: int, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="vocabulary must be from 260 to 65,536"):
        read_words(tmp_path / "any", vocabulary)


@given(
    st.lists(st.sampled_from([b"a", b"B", b" ", b"\n", b"\t", b"\f", b"\xff"]), min_size=1).map(b"".join),
    st.integers(1, 9),
)
def test_no_chunk_cuts_a_word_that_fits(content: bytes, size: int) -> None:
    raw = np.frombuffer(content, dtype=np.uint8)
    found = [chunk for _, chunk in chunks(raw, size)]
    assert b"".join(found) == content.lower()
    if all(len(word) < size for word in content.split()):
        assert [word for chunk in found for word in chunk.split()] == content.lower().split()
