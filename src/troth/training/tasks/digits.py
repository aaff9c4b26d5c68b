"""Handwritten digits, 8×8 pixels, from scikit-learn: real data that is already on the machine."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.training.task import Batch, Model, Task

_TEST_IMAGES = 360
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class _DigitsTask(Task):
    batch_size: int = 8

    classes = 10

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and not 1 <= value <= 65536:
                raise ValueError(f"{name} must be at least 1 and at most 65536, got {value}")

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
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation is one of {', '.join(_ACTIVATIONS)}, got '{self.activation}'")

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
