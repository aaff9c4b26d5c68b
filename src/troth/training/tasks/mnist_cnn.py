"""MNIST, dealt out by class: the network and the data of Karimireddy et al. 2022 (docs/prior-work.md)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training.datasets import ImageSet, mnist, mnist_files
from troth.training.task import Task
from troth.training.tasks.images import ImageTask, Normalise

# B images of a batch, N images of the training set

_SPLITS, _DROPOUTS = ("iid", "sorted"), ("fresh", "fixed")


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
        for name, value, known in (("split", self.split, _SPLITS), ("dropout", self.dropout, _DROPOUTS)):
            if value not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, got '{value}'")

    def data_files(self) -> Sequence[Path]:
        return mnist_files(self.data, "mnist")

    def images(self) -> ImageSet:
        return mnist(self.data, "mnist")

    def shard(self, peer: int, peers: int, honest: Sequence[int]) -> Task:
        """Honest peers: one run each of the images in order of their classes, of equal length. Liars: all images."""
        if self.split == "iid" or peer not in honest:
            return self
        size = -(-len(self.images().train.labels) // len(honest))
        return MnistShard(**_options(self), first=list(honest).index(peer) * size, size=size)

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


def _options(task: MnistCNN) -> dict[str, Any]:
    return {field.name: getattr(task, field.name) for field in fields(task)}


@cache
def _by_class(data: Path) -> NDArray[np.int64]:
    """Numbers of the training images in order of their classes; within a class, as they are in the file."""
    labels = mnist(data, "mnist").train.labels
    labels_N = labels.rows(np.arange(len(labels)), torch.device("cpu")).numpy()
    return np.argsort(labels_N, kind="stable")
