"""CIFAR-10, MNIST and Fashion-MNIST in the forms in which people have them. Pickles are not opened: they can run code."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from troth.training.datasets.prepared import Progress, array, prepared
from troth.training.datasets.table import Table
from troth.training.errors import TaskError

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


_Make = Callable[[Sequence[Path], Progress], Mapping[str, NDArray[Any]]]


def _image_set(name: str, files: Sequence[Path], make: _Make, shape: tuple[int, int, int]) -> ImageSet:
    def write(folder: Path, progress: Progress) -> None:
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


def _cifar_from_binary(files: Sequence[Path], progress: Progress) -> dict[str, Pixels]:
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


def _from_arrays(files: Sequence[Path], progress: Progress) -> dict[str, Pixels]:
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


def _from_idx(files: Sequence[Path], progress: Progress) -> dict[str, Pixels]:
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
