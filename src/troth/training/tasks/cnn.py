"""MNIST or Fashion-MNIST with a small convolutional network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from troth.training.datasets import ImageSet, mnist, mnist_files
from troth.training.tasks.images import ImageTask, Normalise

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
        if self.set not in _SETS:
            raise ValueError(f"set is one of {', '.join(_SETS)}, got '{self.set}'")

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
