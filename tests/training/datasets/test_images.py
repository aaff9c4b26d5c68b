"""CIFAR-10 and MNIST in every form give the same arrays; what is missing or wrong is said."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.datasets.written import (
    cifar_arrays,
    drawn,
    mnist_arrays,
    write_cifar_binary,
    write_idx,
    write_npz,
)
from troth.training import TaskError
from troth.training.datasets import ImageSet, Table, cifar10, cifar10_files, mnist, mnist_files

CPU = torch.device("cpu")


def write_npy(folder: Path) -> None:
    for name, values in cifar_arrays().items():
        np.save(folder / f"{name}.npy", values)


CIFARS: dict[str, Callable[[Path], None]] = {
    "binary": lambda folder: write_cifar_binary(folder, cifar_arrays()),
    "binary, as unpacked": lambda folder: write_cifar_binary(folder / "cifar-10-batches-bin", cifar_arrays()),
    "npz": lambda folder: write_npz(folder / "cifar10.npz", cifar_arrays()),
    "npy": write_npy,
}
MNISTS: dict[str, Callable[[Path], None]] = {
    "idx": lambda folder: write_idx(folder, mnist_arrays()),
    "idx.gz": lambda folder: write_idx(folder, mnist_arrays(), ".gz"),
    "torchvision": lambda folder: write_idx(folder / "MNIST" / "raw", mnist_arrays()),
    "npz": lambda folder: write_npz(folder / "mnist.npz", mnist_arrays()),
}


def all_of(found: ImageSet, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = getattr(found, part)
    rows = np.arange(len(labels))
    return images.rows(rows, CPU), labels.rows(rows, CPU)


@pytest.mark.parametrize("form", CIFARS)
def test_cifar10(form: str, tmp_path: Path) -> None:
    CIFARS[form](tmp_path)
    for part in ("train", "test"):
        images, labels = all_of(cifar10(tmp_path), part)
        assert torch.equal(images, torch.from_numpy(cifar_arrays()[f"x_{part}"]).permute(0, 3, 1, 2))
        assert torch.equal(labels, torch.from_numpy(cifar_arrays()[f"y_{part}"]))


@pytest.mark.parametrize("form", MNISTS)
def test_mnist(form: str, tmp_path: Path) -> None:
    MNISTS[form](tmp_path)
    for part in ("train", "test"):
        images, labels = all_of(mnist(tmp_path, "mnist"), part)
        assert torch.equal(images, torch.from_numpy(mnist_arrays()[f"x_{part}"])[:, None])
        assert torch.equal(labels, torch.from_numpy(mnist_arrays()[f"y_{part}"]))


def test_both_sets_may_lie_in_one_folder(tmp_path: Path) -> None:
    write_npz(tmp_path / "mnist.npz", mnist_arrays())
    write_npz(tmp_path / "fashion-mnist.npz", drawn("fashion", 30, 5, (28, 28)))
    assert mnist_files(tmp_path, "fashion") == [tmp_path / "fashion-mnist.npz"]
    assert (len(mnist(tmp_path, "mnist").train.labels), len(mnist(tmp_path, "fashion").train.labels)) == (40, 30)


def test_an_npz_may_be_named_itself(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz", cifar_arrays())
    assert cifar10_files(tmp_path / "mine.npz") == [tmp_path / "mine.npz"]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"no CIFAR-10 in .*: looked for data_batch_1.bin to test_batch.bin, .*cifar\.html"
    ):
        cifar10(tmp_path / "nowhere")
    with pytest.raises(TaskError, match=r"no FashionMNIST in .*fashion-mnist\.npz.*github\.com/zalandoresearch"):
        mnist(tmp_path, "fashion")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(TaskError, match="pickles can run code and are not opened"):
        cifar10(tmp_path)
    arrays = {**cifar_arrays(), "y_train": np.array([{}], dtype=object)}
    np.savez(tmp_path / "cifar10.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"does not hold cifar10: .*allow_pickle"):
        cifar10(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps("x"), r"cifar10.npz does not hold cifar10"),
        (b"PK\3\4 and no more", r"cifar10.npz does not hold cifar10"),
    ],
)
def test_a_damaged_file(content: bytes, message: str, tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "cifar10.npz").write_bytes(content)
    with pytest.raises(TaskError, match=message):
        cifar10(tmp_path)
    assert list(own_cache.iterdir()) == [], "half of a dataset is left in the cache"


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    write_cifar_binary(tmp_path, cifar_arrays())
    last = tmp_path / "test_batch.bin"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(TaskError, match="does not hold cifar10: cannot reshape"):
        cifar10(tmp_path)


def test_wrong_shapes_and_labels(tmp_path: Path) -> None:
    write_npz(tmp_path / "cifar10.npz", mnist_arrays())
    with pytest.raises(
        TaskError, match=r"images are uint8 \(40, 1, 28, 28\), and should be uint8 \(N, \(3, 32, 32\)\)"
    ):
        cifar10(tmp_path)
    arrays = mnist_arrays()
    write_npz(tmp_path / "mnist.npz", {**arrays, "y_train": arrays["y_train"] + np.uint8(10)})
    with pytest.raises(TaskError, match="40 labels for 40 images; there should be one from 0 to 9"):
        mnist(tmp_path, "mnist")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_rows_are_the_same_on_every_device() -> None:
    values = drawn("rows", 30, 1, (5, 2))["x_train"]
    indices = np.array([[3, 29], [0, 3]])
    for device in (CPU, torch.device("cuda")):
        assert torch.equal(Table(values).rows(indices, device).cpu(), torch.from_numpy(values[indices]))
