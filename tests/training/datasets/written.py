"""Tiny datasets, written as people have the large ones."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from troth.crypto import stream

Arrays = dict[str, NDArray[np.uint8]]


def drawn(name: str, train: int, test: int, pixels: tuple[int, ...]) -> Arrays:
    """Random images, channels last, and labels."""
    arrays: Arrays = {}
    for part, count in (("train", train), ("test", test)):
        draw = stream(0, name, part)
        size = int(np.prod(pixels))
        arrays[f"x_{part}"] = draw.integers(256, count * size).astype(np.uint8).reshape(count, *pixels)
        arrays[f"y_{part}"] = draw.integers(10, count).astype(np.uint8)
    return arrays


def cifar_arrays() -> Arrays:
    return drawn("cifar", 50, 10, (32, 32, 3))


def mnist_arrays() -> Arrays:
    return drawn("mnist", 40, 12, (28, 28))


def write_npz(file: Path, arrays: Arrays) -> None:
    np.savez(file, **arrays)  # type: ignore[arg-type]


def write_cifar_binary(folder: Path, arrays: Arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = {part: arrays[f"x_{part}"].transpose(0, 3, 1, 2).reshape(-1, 3072) for part in ("train", "test")}
    records = {part: np.concatenate([arrays[f"y_{part}"][:, None], images[part]], axis=1) for part in images}
    for k, some in enumerate(np.split(records["train"], 5)):
        (folder / f"data_batch_{k + 1}.bin").write_bytes(some.tobytes())
    (folder / "test_batch.bin").write_bytes(records["test"].tobytes())


def idx(values: NDArray[np.uint8]) -> bytes:
    sizes = np.array(values.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def write_idx(folder: Path, arrays: Arrays, ending: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in (
        ("x_train", "train-images-idx3-ubyte"),
        ("y_train", "train-labels-idx1-ubyte"),
        ("x_test", "t10k-images-idx3-ubyte"),
        ("y_test", "t10k-labels-idx1-ubyte"),
    ):
        raw = idx(arrays[name])
        (folder / f"{file}{ending}").write_bytes(gzip.compress(raw) if ending == ".gz" else raw)
