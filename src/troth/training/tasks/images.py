"""What tasks on images share: rows of a data folder, pixels that stay bytes until the model normalises them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training.datasets import ImageSet
from troth.training.task import Batch, Model, Task
from troth.training.uploads import upload

# B images of a batch, C channels

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
        for name, value in vars(self).items():
            if type(value) is int and not 1 <= value <= 65536:
                raise ValueError(f"{name} must be at least 1 and at most 65536, got {value}")

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
