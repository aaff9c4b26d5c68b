"""What tasks on images share: rows of a data folder, pixels that stay bytes until the model normalises them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.training.datasets import ImageSet, mnist, mnist_files
from troth.training.gradient_calls import upload
from troth.training.task import Batch, Model, Task, check_choices, check_counts

# B images of a batch, N images of the training set, C channels

_CPU = torch.device("cpu")
_AT_ONCE = 250  # images of the test set
_FEW = 64  # images of a batch


@dataclass(frozen=True)
class ImageTask(Task):
    """Images of ten classes from a folder that the user names."""

    data: Path
    batch_size: int = 8
    test_images: int = 10_000  # so many, the first of the test set, are looked at in evaluation

    classes = 10

    def __post_init__(self) -> None:
        check_counts(self)

    @abstractmethod
    def images(self) -> ImageSet:
        """The dataset, memory-mapped."""

    @abstractmethod
    def data_files(self) -> Sequence[Path]: ...

    def batch(self, draw: Stream) -> Batch:
        return self.batch_on(_CPU, draw)

    def batch_on(self, device: torch.device, draw: Stream) -> Batch:
        train, rows_B = self.images().train, self.rows(draw)
        # A few images are gathered on the host, in less time than it takes to launch the same on an accelerator.
        where = _CPU if self.batch_size <= _FEW else device
        images = self.augmented(train.images.rows(rows_B, where), draw)
        return {"images": upload(images, device), "labels": upload(train.labels.rows(rows_B, where), device)}

    def rows(self, draw: Stream) -> NDArray[np.int64]:
        """Numbers of the images of a batch."""
        return draw.integers(len(self.images().train.labels), self.batch_size)

    def augmented(self, images: Tensor, draw: Stream) -> Tensor:
        """The images as training sees them."""
        return images

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["images"]), batch["labels"].long())

    def examples(self) -> Batch:
        test = self.images().test
        rows = np.arange(min(self.test_images, len(test.labels)))
        return {"images": test.images.rows(rows, _CPU), "labels": test.labels.rows(rows, _CPU).long()}

    def evaluate(self, model: Model) -> dict[str, float]:
        test = self.images().test
        count = min(self.test_images, len(test.labels))
        right, loss = 0, 0.0
        for start in range(0, count, _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, count))
            logits, labels = model(test.images.rows(rows, _CPU)), test.labels.rows(rows, _CPU).long()
            right += int((logits.argmax(dim=1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        return {"accuracy": right / count, "loss": loss / count}


class Normalise(nn.Module):
    """Bytes to numbers with mean 0 and variance 1 in every channel. In the model, so that batches travel as bytes."""

    mean: Tensor
    scale: Tensor

    def __init__(self, means: Sequence[float], deviations: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([255 * mean for mean in means])[:, None, None])
        self.register_buffer("scale", torch.tensor([1 / (255 * deviation) for deviation in deviations])[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        return (images.to(self.mean.dtype) - self.mean) * self.scale


# Handwritten digits, 8×8 pixels, from scikit-learn: real data that is already on the machine.


_TEST_IMAGES = 360
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class _DigitsTask(Task):
    batch_size: int = 8

    classes = 10

    def __post_init__(self) -> None:
        check_counts(self)

    def batch(self, draw: Stream) -> Batch:
        images, labels, _, _ = _digits()
        rows = torch.from_numpy(draw.integers(len(labels), self.batch_size))
        return {"images": images[rows], "labels": labels[rows]}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["images"]), batch["labels"])

    def examples(self) -> Batch:
        _, _, images, labels = _digits()
        return {"images": images, "labels": labels}

    def evaluate(self, model: Model) -> dict[str, float]:
        _, _, images, labels = _digits()
        logits = model(images)
        right = int((logits.argmax(dim=1) == labels).sum())
        return {"accuracy": right / len(labels), "loss": float(F.cross_entropy(logits, labels))}


@dataclass(frozen=True)
class Digits(_DigitsTask):
    """scikit-learn's 8×8 handwritten digits, a two-layer perceptron"""

    hidden: int = 64
    activation: str = "relu"  # tanh has no kinks: machines of different kinds agree on it far better

    steps = 400
    optimizer = "adamw"  # its steps are bounded, so that liars push the model less far before they are banned
    rate = 0.01
    tau = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, activation=_ACTIVATIONS)

    def model(self) -> nn.Module:
        activation = _ACTIVATIONS[self.activation]()
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.hidden), activation, nn.Linear(self.hidden, 10))


@dataclass(frozen=True)
class DigitsCNN(_DigitsTask):
    """scikit-learn's 8×8 handwritten digits, a small convolutional network with BatchNorm"""

    channels: int = 8

    rate = 0.1
    tau = 1.0

    def model(self) -> nn.Module:
        width = self.channels
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 10),
        )


@cache
def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels, by one fixed shuffle."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    data = load_digits()
    order = torch.from_numpy(stream(0, "digits", "split").permutation(len(data.target)))
    images = torch.from_numpy(data.images).float()[:, None][order] / 16 - 0.3  # about zero mean
    labels = torch.from_numpy(data.target).long()[order]
    return images[_TEST_IMAGES:], labels[_TEST_IMAGES:], images[:_TEST_IMAGES], labels[:_TEST_IMAGES]


# MNIST or Fashion-MNIST with a small convolutional network.


_SETS = {"mnist": (0.1307, 0.3081), "fashion": (0.2860, 0.3530)}  # mean and deviation of the pixels


@dataclass(frozen=True)
class CNN(ImageTask):
    """MNIST or Fashion-MNIST (set=fashion) from a folder (IDX files or .npz), a convolutional network with BatchNorm"""

    set: str = "mnist"
    channels: int = 16
    test_images: int = 2000

    steps = 500
    rate = 0.05
    tau = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, set=_SETS)

    def data_files(self) -> Sequence[Path]:
        return mnist_files(self.data, self.set)

    def images(self) -> ImageSet:
        return mnist(self.data, self.set)

    def model(self) -> nn.Module:
        mean, deviation = _SETS[self.set]
        width = self.channels
        return nn.Sequential(
            Normalise([mean], [deviation]),
            nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 49, 10),
        )


# MNIST, dealt out by class: the network and the data of Karimireddy et al. 2022 (docs/prior-work.md).


@dataclass(frozen=True)
class MnistCNN(ImageTask):
    """MNIST from a folder, a network with dropout (1.2M parameters); split=sorted: with a server, every peer has few classes"""

    batch_size: int = 32
    split: str = "iid"
    dropout: str = "fresh"  # fixed: the same units are dropped at every step, by everyone, as in the authors' program

    steps = 600
    optimizer = "sgd:nesterov=false"
    rate = 0.01
    tau = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, split=("iid", "sorted"), dropout=("fresh", "fixed"))

    def data_files(self) -> Sequence[Path]:
        return mnist_files(self.data, "mnist")

    def images(self) -> ImageSet:
        return mnist(self.data, "mnist")

    def shard(self, peer: int, peers: int, honest: Sequence[int]) -> Task:
        """Honest peers: one run each of the images in order of their classes, of equal length. Liars: all images."""
        if self.split == "iid" or peer not in honest:
            return self
        size = -(-len(self.images().train.labels) // len(honest))
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return MnistShard(**options, first=list(honest).index(peer) * size, size=size)

    def model(self) -> nn.Module:
        fixed = self.dropout == "fixed"
        return nn.Sequential(
            Normalise([0.1307], [0.3081]),
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            FixedDropout(0.25, (self.batch_size, 64, 1, 1)) if fixed else nn.Dropout2d(0.25),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            FixedDropout(0.5, (self.batch_size, 128)) if fixed else nn.Dropout(0.5),
            nn.Linear(128, 10),
        )


@dataclass(frozen=True)
class MnistShard(MnistCNN):
    """One honest peer's part of the images: `size` of them from place `first` of the sorted ones on, around the end."""

    first: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        """Made by a task that has been checked."""

    def rows(self, draw: Stream) -> NDArray[np.int64]:
        order_N = _by_class(self.data)
        rows_B: NDArray[np.int64] = order_N[(self.first + draw.integers(self.size, self.batch_size)) % len(order_N)]
        return rows_B


class FixedDropout(nn.Module):
    """Dropout that drops the same units at every step: a constant of the model, one pattern for each place of a batch."""

    keep: Tensor

    def __init__(self, p: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("keep", (torch.rand(shape) >= p).float() / (1 - p))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.keep if self.training else features


@cache
def _by_class(data: Path) -> NDArray[np.int64]:
    """Numbers of the training images in order of their classes; within a class, as they are in the file."""
    labels = mnist(data, "mnist").train.labels
    labels_N = labels.rows(np.arange(len(labels)), _CPU).numpy()
    return np.argsort(labels_N, kind="stable")
