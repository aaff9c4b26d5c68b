"""Text as bytes: a plain file is mapped as it is, a compressed one (.gz, .xz) is unpacked into the cache once."""

import gzip
import lzma
import zlib
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from troth.training import file_reads
from troth.training.datasets.prepared import Progress, prepared
from troth.training.errors import TaskError

_CHUNK = 1 << 22
_MOST = (1 << 31) - 1  # bytes; places are drawn below 2³¹


@cache
def read_text(file: Path) -> NDArray[np.uint8]:
    """The bytes of a text, memory-mapped."""
    if not file.is_file():
        nearby = [each.name for each in sorted(file.glob("*")) if each.suffix in (".txt", ".gz", ".xz")][:3]
        hint = f"; it is a folder, name a file in it ({', '.join(nearby)})" if nearby else ""
        raise TaskError(
            f"no text at {file}{hint} (data=… takes a file, plain or .gz or .xz: enwik8, tinyshakespeare, or your own)"
        )
    if file.suffix not in (".gz", ".xz"):
        return _mapped(file, file)
    folder = prepared("text", [file], lambda folder, progress: _unpack(file, folder, progress))
    with file_reads.unwatched():  # made by us, out of a file that is watched
        return _mapped(folder / "text", file)


def _mapped(plain: Path, file: Path) -> NDArray[np.uint8]:
    size = plain.stat().st_size
    if not 0 < size <= _MOST:
        raise TaskError(f"{file} holds {size:,} bytes of text: from 1 to {_MOST:,} will do")
    return np.memmap(plain, dtype=np.uint8, mode="r")


def _unpack(file: Path, folder: Path, progress: Progress) -> None:
    size = file.stat().st_size
    try:
        unpacking = gzip.open if file.suffix == ".gz" else lzma.open
        with file.open("rb") as raw, cast(BinaryIO, unpacking(raw)) as unpacked, (folder / "text").open("wb") as out:
            while chunk := unpacked.read(_CHUNK):
                out.write(chunk)
                progress.at(raw.tell() / size)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise TaskError(f"{file} cannot be unpacked: {error}") from error
