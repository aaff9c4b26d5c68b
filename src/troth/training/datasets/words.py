"""Text as numbers of words, by a vocabulary that follows from the text's bytes and nothing else.

Words are runs of letters (lower case; bytes above 127 count as letters), every digit and every sign is a word of its own, and
white space only separates. The vocabulary: a few marks, the 256 bytes, and the most frequent words. A word that is not in it is
spelled in bytes. No tokenizer's version can change any of this.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from troth.training.datasets.prepared import Progress, array, prepared
from troth.training.datasets.text import read_text
from troth.training.errors import TaskError

PAD, START, END, MASK = range(4)
FIRST_BYTE = 4
FIRST_WORD = FIRST_BYTE + 256
MOST_WORDS = 1 << 16

_WORD = re.compile(rb"[a-z\x80-\xff]+|[^\s]")
_SPACES = (b" ", b"\n", b"\t", b"\r", b"\v", b"\f")
_CHUNK = 1 << 22


@cache
def read_words(file: Path, vocabulary: int) -> NDArray[np.int32]:
    """The text's words as numbers below `vocabulary`, memory-mapped."""
    if not FIRST_WORD <= vocabulary <= MOST_WORDS:
        raise TaskError(f"vocabulary must be from {FIRST_WORD} to {MOST_WORDS:,}, got {vocabulary:,}")
    if not file.is_file():
        read_text(file)  # says what is wrong
    folder = prepared(f"words-{vocabulary}", [file], lambda to, progress: _write(file, vocabulary, to, progress))
    return array(folder, "words")


def most_frequent(counted: Counter[bytes], count: int) -> list[bytes]:
    """Words of at least two bytes, the most frequent first; among equals in the order of their bytes."""
    longer = ((-times, word) for word, times in counted.items() if len(word) > 1)
    return [word for _, word in sorted(longer)[:count]]


def encoded(found: list[bytes], numbers: dict[bytes, int]) -> list[int]:
    """Numbers of words; a word without one is spelled."""
    codes: list[int] = []
    for word in found:
        if (number := numbers.get(word)) is not None:
            codes.append(number)
        else:
            codes.extend(FIRST_BYTE + byte for byte in word)
    return codes


def _write(file: Path, vocabulary: int, folder: Path, progress: Progress) -> None:
    raw = read_text(file)
    counted: Counter[bytes] = Counter()
    for done, chunk in chunks(raw):
        counted.update(_WORD.findall(chunk))
        progress.at(done / 2)
    common = most_frequent(counted, vocabulary - FIRST_WORD)
    numbers = {word: FIRST_WORD + k for k, word in enumerate(common)}
    parts = []
    for done, chunk in chunks(raw):
        parts.append(np.array(encoded(_WORD.findall(chunk), numbers), dtype=np.int32))
        progress.at(0.5 + done / 2)
    np.save(folder / "words.npy", np.concatenate(parts))
    (folder / "vocabulary.txt").write_bytes(b"\n".join(common))


def chunks(raw: NDArray[Any], size: int = _CHUNK) -> Iterator[tuple[float, bytes]]:
    """Pieces of the text in lower case, cut at white space where there is some, and the share of the text up to their ends."""
    start, rest = 0, b""
    while start < len(raw):
        chunk = rest + raw[start : start + size].tobytes().lower()
        start = min(start + size, len(raw))
        cut = max(chunk.rfind(space) for space in _SPACES) if start < len(raw) else len(chunk)
        cut = cut if cut > 0 else len(chunk)
        rest = chunk[cut:]
        yield start / len(raw), chunk[:cut]
