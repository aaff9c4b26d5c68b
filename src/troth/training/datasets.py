"""Datasets in the forms in which people have them, as arrays that are memory-mapped: images, and texts as bytes or words."""

import gzip
import hashlib
import lzma
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, NamedTuple, cast
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from troth.crypto import stream
from troth.training import determinism
from troth.training.gradient_calls import upload
from troth.training.task import TaskError

# Data as arrays that can be memory-mapped: made once out of the user's files, and kept in a cache folder.
#
# A prepared folder is named by the contents of the files that it was made from, so it is never out of date, and it appears
# whole or not at all: it is written beside its place and renamed.


_FORMAT = "2"  # of what is prepared: with another number, everything is made anew
_QUIET_S = 2.0  # work that takes longer is reported, and then as often
_CHUNK = 1 << 22

Make = Callable[[Path, "PreparationProgress"], None]  # writes into a folder


class PreparationProgress:
    """Lines on standard error about work that takes more than two seconds."""

    def __init__(self, what: str) -> None:
        self._what, self._told_at = what, monotonic()

    def at(self, done: float) -> None:
        """Say how far it is, from 0 to 1, unless that was said a moment ago."""
        if monotonic() - self._told_at >= _QUIET_S:
            self._told_at = monotonic()
            print(f"preparing {self._what}: {done:.0%}", file=sys.stderr, flush=True)


def prepared(name: str, sources: Sequence[Path], make: Make) -> Path:
    """The folder that `make` fills from these files, or did so earlier."""
    key = hashlib.sha256(f"troth/prepared/{_FORMAT}/{name}".encode())
    for source in sources:
        key.update(_digest(source))
    place = cache_folder() / f"{name}-{key.hexdigest()[:32]}"
    if not place.is_dir():
        with determinism.unwatched():
            _make(place, make, PreparationProgress(f"{name} from {sources[0].parent}"))
    return place


def array(folder: Path, name: str) -> NDArray[Any]:
    """An array of a prepared folder, memory-mapped: rows are read from the disk when they are asked for."""
    with determinism.unwatched():  # made by us, out of files that are watched
        mapped: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return mapped


def cache_folder() -> Path:
    """`troth` in the user's cache folder: $XDG_CACHE_HOME, or ~/.cache."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path("~/.cache").expanduser()) / "troth"


def _make(place: Path, make: Make, progress: PreparationProgress) -> None:
    partial: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=place.parent))
        make(partial, progress)
        partial.chmod(0o755)
        partial.rename(place)
    except OSError as error:
        if place.is_dir():
            return  # another process was faster
        raise TaskError(
            f"cannot prepare data in {place.parent}: {error.strerror or error}; make room there, or name a folder that can be "
            "written to with XDG_CACHE_HOME"
        ) from error
    finally:
        if partial is not None and partial.exists():
            shutil.rmtree(partial, ignore_errors=True)


def _digest(source: Path) -> bytes:
    try:
        stat = source.stat()
        return _digest_of(str(source), (stat.st_size, stat.st_mtime_ns))
    except OSError as error:
        raise TaskError(f"cannot read {source}: {error.strerror}") from error


@cache
def _digest_of(source: str, state: tuple[int, int]) -> bytes:
    """Once for a file that keeps its size and time while the process runs."""
    digest, progress, done = hashlib.sha256(), PreparationProgress(f"{source} (reading it)"), 0
    with open(source, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress.at(done / max(state[0], 1))
    return digest.digest()


# Rows of a dataset dealt out among peers, for `Task.shard`: data of every peer's own, with a trusted server.


# N rows

_TRIES = 100


def dirichlet(labels_N: ArrayLike, parts: int, alpha: float, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Rows of each part, class by class in shares that are drawn from Dirichlet(α): the smaller α, the fewer classes in a part.

    The usual way to make data heterogeneous (Yurochkin et al. 2019, arXiv:1905.12022). Every row is dealt once, and no part
    is empty.
    """
    of_each = np.asarray(labels_N)
    if parts < 1 or not 0 < alpha < np.inf:
        raise TaskError(f"`dirichlet` needs at least 1 part and an alpha above 0, got {parts} and {alpha}")
    for attempt in range(_TRIES):
        owners_N = _owners(of_each, parts, alpha, seed, attempt)
        dealt = tuple(np.flatnonzero(owners_N == part) for part in range(parts))
        if all(len(rows) for rows in dealt):
            return dealt
    raise TaskError(f"alpha {alpha:g} leaves one of {parts} parts of {len(of_each)} rows empty: choose a larger one")


def _owners(labels_N: NDArray[np.int64], parts: int, alpha: float, seed: int, attempt: int) -> NDArray[np.int64]:
    """Pólya's urn: a row goes to any part, with weight α for each, or to the part of an earlier row of its class."""
    owners_N = np.zeros(len(labels_N), dtype=np.int64)
    for label in np.unique(labels_N):
        draw = stream(seed, "dirichlet", attempt, int(label))
        rows = np.flatnonzero(labels_N == label)
        dealt: list[int] = []
        for drawn in draw.uniform(len(rows)):
            place = drawn * (parts * alpha + len(dealt))
            dealt.append(int(place / alpha) if place < parts * alpha else dealt[int(place - parts * alpha)])
        owners_N[rows[draw.permutation(len(rows))]] = np.minimum(dealt, parts - 1)  # rounding could give one more
    return owners_N


# An array on the disk whose rows are asked for by number, on any device.


_MOST_BYTES = 4 << 30  # a larger array stays where it is, and its rows travel


class Table:
    """Rows of an array, gathered where they are used: an accelerator keeps a copy of the whole, made when first asked for.

    The same numbers on every device, since nothing is computed.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._copies: dict[torch.device, Tensor] = {}

    def __len__(self) -> int:
        return len(self._array)

    def rows(self, indices: NDArray[np.int64], device: torch.device) -> Tensor:
        """`array[indices]` as a tensor on the device; indices of any shape."""
        if device.type == "cpu" or self._array.nbytes > _MOST_BYTES:
            return torch.from_numpy(np.asarray(self._array[indices])).to(device)
        if device not in self._copies:
            self._copies[device] = torch.from_numpy(np.array(self._array)).to(device)
        return self._copies[device][upload(torch.from_numpy(indices), device)]


# CIFAR-10, MNIST and Fashion-MNIST. Pickles are not opened: they can run code.


Pixels = NDArray[np.uint8]  # N images × C channels × H rows × W columns; labels N

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_CIFAR_BINARY = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
_CIFAR_RECORD = 1 + 3 * 32 * 32
_CIFAR_NPZ = ("cifar10.npz", "cifar-10.npz")
_CIFAR_WHERE = "https://www.cs.toronto.edu/~kriz/cifar.html has the binary version"
_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MNISTS: dict[str, tuple[tuple[str, ...], str]] = {  # names of .npz files and of folders, and where to get the files
    "mnist": (("mnist", "MNIST"), "the dataset's four IDX files, or mnist.npz as Keras has it"),
    "fashion": (("fashion-mnist", "FashionMNIST"), "https://github.com/zalandoresearch/fashion-mnist has them"),
}


class Images(NamedTuple):
    """Images N×C×H×W and their labels, all uint8."""

    images: Table
    labels: Table


class ImageSet(NamedTuple):
    train: Images
    test: Images


def cifar10_files(data: Path) -> list[Path]:
    """The files of CIFAR-10 in a folder: the official binary version, `cifar10.npz`, or four .npy files."""
    places = (data, data / "cifar-10-batches-bin")
    found = _first([[place / name for name in _CIFAR_BINARY] for place in places]) or _arrays_in(data, _CIFAR_NPZ)
    if found:
        return found
    pickled = (data / "cifar-10-batches-py").exists() or (data / "data_batch_1").exists()
    raise TaskError(
        f"no CIFAR-10 in {data}: looked for {_CIFAR_BINARY[0]} to {_CIFAR_BINARY[-1]}, {_CIFAR_NPZ[0]} and {_ARRAYS[0]}.npy "
        f"{'; its Python version is there, but pickles can run code and are not opened' if pickled else ''}"
        f"(name their folder with data=…; {_CIFAR_WHERE})"
    )


@cache
def cifar10(data: Path) -> ImageSet:
    """50,000 and 10,000 colour images of 32×32 pixels, ten classes."""
    files = cifar10_files(data)
    make = _cifar_from_binary if files[0].suffix == ".bin" else _from_arrays
    return _image_set("cifar10", files, make, shape=(3, 32, 32))


def mnist_files(data: Path, name: str) -> list[Path]:
    """The files of MNIST or Fashion-MNIST in a folder: four IDX files, compressed or not, one .npz or four .npy files."""
    (stem, folder), where = _MNISTS[name]
    places = [data, data / folder / "raw", data / folder, data / stem]
    names = [[plain + ending for plain in _IDX] for ending in ("", ".gz")]
    names += [[plain.replace("-idx", ".idx") for plain in _IDX]]
    found = _first([[place / file for file in four] for place in places for four in names])
    if not found:
        found = _arrays_in(data, (f"{stem}.npz",))
    if found:
        return found
    raise TaskError(
        f"no {folder} in {data}: looked for {_IDX[0]} (and .gz) and its three companions, {stem}.npz and {_ARRAYS[0]}.npy "
        f"(name their folder with data=…; {where})"
    )


@cache
def mnist(data: Path, name: str) -> ImageSet:
    """60,000 and 10,000 grey images of 28×28 pixels, ten classes: "mnist" or "fashion"."""
    files = mnist_files(data, name)
    make = _from_arrays if files[0].suffix in (".npz", ".npy") else _from_idx
    return _image_set(f"mnist-{name}", files, make, shape=(1, 28, 28))


def _first(candidates: Sequence[list[Path]]) -> list[Path]:
    return next((files for files in candidates if all(file.is_file() for file in files)), [])


def _arrays_in(data: Path, names: Sequence[str]) -> list[Path]:
    if data.suffix == ".npz" and data.is_file():
        return [data]
    return _first([*([data / name] for name in names), [data / f"{name}.npy" for name in _ARRAYS]])


_Make = Callable[[Sequence[Path], PreparationProgress], Mapping[str, NDArray[Any]]]


def _image_set(name: str, files: Sequence[Path], make: _Make, shape: tuple[int, int, int]) -> ImageSet:
    def write(folder: Path, progress: PreparationProgress) -> None:
        try:
            found = make(files, progress)
        except (ValueError, EOFError, KeyError, BadZipFile, gzip.BadGzipFile) as error:
            raise TaskError(f"{files[0]} does not hold {name}: {error}") from error
        for part in ("train", "test"):
            images, labels = found[f"x_{part}"], found[f"y_{part}"].reshape(-1)
            _check(images, labels, shape, f"{name} in {files[0].parent}")
            np.save(folder / f"x_{part}.npy", np.ascontiguousarray(images))
            np.save(folder / f"y_{part}.npy", labels.astype(np.uint8))

    folder = prepared(name, files, write)
    train, test = (
        Images(Table(array(folder, f"x_{part}")), Table(array(folder, f"y_{part}"))) for part in ("train", "test")
    )
    return ImageSet(train, test)


def _check(images: NDArray[Any], labels: NDArray[Any], shape: tuple[int, int, int], where: str) -> None:
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise TaskError(f"{where}: images are {images.dtype} {images.shape}, and should be uint8 (N, {shape})")
    if len(labels) != len(images) or not len(labels) or labels.min() < 0 or labels.max() > 9:
        raise TaskError(
            f"{where}: {len(labels)} labels for {len(images)} images; there should be one from 0 to 9 for each"
        )


def _cifar_from_binary(files: Sequence[Path], progress: PreparationProgress) -> dict[str, Pixels]:
    """Records of a label and 3×32×32 pixels."""
    batches = []
    for k, file in enumerate(files):
        batches.append(np.frombuffer(file.read_bytes(), dtype=np.uint8).reshape(-1, _CIFAR_RECORD))
        progress.at((k + 1) / len(files))
    train, test = np.concatenate(batches[:-1]), batches[-1]
    return {
        name: records[:, 0] if name.startswith("y") else records[:, 1:].reshape(-1, 3, 32, 32)
        for name, records in zip(_ARRAYS, (train, train, test, test), strict=True)
    }


def _from_arrays(files: Sequence[Path], progress: PreparationProgress) -> dict[str, Pixels]:
    """`x_train`, `y_train`, `x_test`, `y_test`; images as people save them: channels last, or without channels."""
    found = {}
    for k, name in enumerate(_ARRAYS):
        if len(files) == 1:
            with files[0].open("rb") as raw:
                archive = np.load(raw, allow_pickle=False)
                if isinstance(archive, np.ndarray):
                    raise ValueError("it is one array, and no archive of them")
                values = archive[name]
        else:
            values = np.load(files[k], allow_pickle=False)
        if values.ndim == 3:
            values = values[:, None]
        elif values.ndim == 4 and values.shape[-1] in (1, 3):
            values = values.transpose(0, 3, 1, 2)
        found[name] = values
        progress.at((k + 1) / len(_ARRAYS))
    return found


def _from_idx(files: Sequence[Path], progress: PreparationProgress) -> dict[str, Pixels]:
    """Files that begin with two zeros, the type (8: unsigned byte), the number of axes, and the axes as big-endian numbers."""
    found = {}
    for k, (name, file) in enumerate(zip(_ARRAYS, files, strict=True)):
        with cast(BinaryIO, gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as opened:
            magic = opened.read(4)
            if len(magic) != 4 or magic[:3] != b"\0\0\x08":
                raise ValueError(f"{file.name} is no IDX file of bytes")
            sizes = np.frombuffer(opened.read(4 * magic[3]), dtype=">u4").astype(int)
            values = np.frombuffer(opened.read(), dtype=np.uint8).reshape(*sizes)
        found[name] = values[:, None] if values.ndim == 3 else values
        progress.at((k + 1) / len(files))
    return found


# Text as bytes: a plain file is mapped as it is, a compressed one (.gz, .xz) is unpacked into the cache once.


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
    with determinism.unwatched():  # made by us, out of a file that is watched
        return _mapped(folder / "text", file)


def _mapped(plain: Path, file: Path) -> NDArray[np.uint8]:
    size = plain.stat().st_size
    if not 0 < size <= _MOST:
        raise TaskError(f"{file} holds {size:,} bytes of text: from 1 to {_MOST:,} will do")
    return np.memmap(plain, dtype=np.uint8, mode="r")


def _unpack(file: Path, folder: Path, progress: PreparationProgress) -> None:
    size = file.stat().st_size
    try:
        unpacking = gzip.open if file.suffix == ".gz" else lzma.open
        with file.open("rb") as raw, cast(BinaryIO, unpacking(raw)) as unpacked, (folder / "text").open("wb") as out:
            while chunk := unpacked.read(_CHUNK):
                out.write(chunk)
                progress.at(raw.tell() / size)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise TaskError(f"{file} cannot be unpacked: {error}") from error


# Text as numbers of words, by a vocabulary that follows from the text's bytes and nothing else.
#
# Words are runs of letters (lower case; bytes above 127 count as letters), every digit and every sign is a word of its own,
# and white space only separates. The vocabulary: a few marks, the 256 bytes, and the most frequent words. A word that is not
# in it is spelled in bytes. No tokenizer's version can change any of this.


PAD, START, END, MASK = range(4)
FIRST_BYTE = 4
FIRST_WORD = FIRST_BYTE + 256
MOST_WORDS = 1 << 16

_WORD = re.compile(rb"[a-z\x80-\xff]+|[^\s]")
_SPACES = (b" ", b"\n", b"\t", b"\r", b"\v", b"\f")


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


def _write(file: Path, vocabulary: int, folder: Path, progress: PreparationProgress) -> None:
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
