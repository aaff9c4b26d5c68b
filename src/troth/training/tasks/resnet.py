"""CIFAR-10 with the ResNet-18 of the paper's experiments (He et al. 2016, for 32×32 pixels: no pooling at the start)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training.datasets import ImageSet, cifar10, cifar10_files
from troth.training.gradient_calls import upload
from troth.training.task import check_choices
from troth.training.tasks.small_images import ImageTask, Normalise

# B images of a batch, C channels, S rows and columns of pixels

_PADDING = 4
_MEANS, _DEVIATIONS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_GROUPS = 32  # of GroupNorm, or as many as divide both this and the channels (Wu, He 2018)

Activation = Callable[[Tensor], Tensor]
Norm = Callable[[int], nn.Module]  # channels -> the layer behind a convolution

_ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}
_NORMS: dict[str, Norm] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(gcd(_GROUPS, channels), channels),
}


@dataclass(frozen=True)
class CIFARTask(ImageTask):
    """CIFAR-10 from a folder, moved and mirrored in training."""

    def data_files(self) -> Sequence[Path]:
        return cifar10_files(self.data)

    def images(self) -> ImageSet:
        return cifar10(self.data)

    def augmented(self, images: Tensor, draw: Stream) -> Tensor:
        """Move each image by up to four pixels in both directions, and turn half of them round."""
        shifts_2B = draw.integers(2 * _PADDING + 1, 2 * len(images)).reshape(2, -1)
        turned_B = draw.integers(2, len(images))
        return cropped(images, torch.from_numpy(shifts_2B), torch.from_numpy(turned_B))


@dataclass(frozen=True)
class ResNet18(CIFARTask):
    """CIFAR-10 from a folder (binary version or cifar10.npz), ResNet-18 with 11.2M parameters"""

    width: int = 64  # channels of the first stage; the last has eight times as many
    activation: str = "relu"  # tanh and gelu have no kinks: machines of different kinds agree on them far better
    norm: str = "batch"  # group: an image's numbers depend on that image alone
    channels_last: bool = False  # in memory: other bits of the same function, and faster on a GPU

    steps = 25_000
    optimizer = "sgd:weight_decay=0.0005"  # with Nesterov's momentum of 0.9
    rate = 0.01
    tau = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, activation=_ACTIVATIONS, norm=_NORMS)

    def model(self) -> nn.Module:
        activation, norm = _ACTIVATIONS[self.activation], _NORMS[self.norm]
        return ResNet(
            self.width,
            stages=4,
            depth=2,
            deviations=_DEVIATIONS,
            activation=activation,
            norm=norm,
            channels_last=self.channels_last,
        )


def cropped(images: Tensor, shifts_2B: Tensor, turned_B: Tensor) -> Tensor:
    """Windows of images with a black border, from a row and a column on, mirrored where `turned_B` is 1."""
    if images.is_cuda:
        return gathered(images, shifts_2B, turned_B)
    count, channels, size, _ = images.shape
    bordered = np.zeros((count, channels, size + 2 * _PADDING, size + 2 * _PADDING), images.numpy().dtype)
    bordered[..., _PADDING:-_PADDING, _PADDING:-_PADDING] = images.numpy()
    windows = np.empty(images.shape, bordered.dtype)
    for window, image, row, column, turned in zip(
        windows, bordered, *shifts_2B.tolist(), turned_B.tolist(), strict=True
    ):
        seen = image[:, row : row + size, column : column + size]
        window[:] = seen[..., ::-1] if turned == 1 else seen
    return torch.from_numpy(windows)


def gathered(images: Tensor, shifts_2B: Tensor, turned_B: Tensor) -> Tensor:
    """The same in few operations, for an accelerator."""
    count, channels, size, _ = images.shape
    along_S, shifted_2B1 = np.arange(size), shifts_2B.numpy()[..., None]
    across_BS = np.where(turned_B.numpy()[:, None] == 1, along_S[::-1], along_S)
    places_2BS = np.stack([shifted_2B1[0] + along_S, shifted_2B1[1] + across_BS])
    rows_BS, columns_BS = upload(torch.from_numpy(places_2BS), images.device)
    bordered = F.pad(images, (_PADDING,) * 4)
    which, colours = _numbers(count, images.device), _numbers(channels, images.device)
    places = (
        which[:, None, None, None],
        colours[None, :, None, None],
        rows_BS[:, None, :, None],
        columns_BS[:, None, None, :],
    )
    return bordered[places]


@lru_cache(maxsize=16)
def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


class ResNet(nn.Module):
    """A 3×3 convolution, stages of `depth` blocks (each stage twice as wide), the mean over all places, and a linear layer.

    Layers are called `bn…` whatever the norm: the names of a saved model do not depend on it.
    """

    def __init__(
        self,
        width: int,
        *,
        stages: int,
        depth: int,
        deviations: Sequence[float],
        activation: Activation = F.relu,
        norm: Norm = nn.BatchNorm2d,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self._activation = activation
        self._order = torch.channels_last if channels_last else torch.contiguous_format
        self.normalise = Normalise(_MEANS, deviations)
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        blocks: list[nn.Module] = []
        before = width
        for stage in range(stages):
            channels = width << stage
            blocks.append(_Block(before, channels, 1 if stage == 0 else 2, activation, norm))
            blocks += [_Block(channels, channels, 1, activation, norm) for _ in range(depth - 1)]
            before = channels
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(before, 10)

    def forward(self, images: Tensor) -> Tensor:
        pixels = self.normalise(images).contiguous(memory_format=self._order)  # layers keep the order of what comes in
        features = self._activation(self.bn1(self.conv1(pixels)))
        pooled = self.blocks(features).mean(dim=(2, 3))
        logits: Tensor = self.linear(pooled)
        return logits


class _Block(nn.Module):
    """Two 3×3 convolutions and the input, which a 1×1 convolution adapts where the shape changes."""

    def __init__(self, before: int, channels: int, stride: int, activation: Activation, norm: Norm) -> None:
        super().__init__()
        self._activation = activation
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = norm(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride=stride, bias=False), norm(channels))

    def forward(self, features: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self._activation(self.bn1(self.conv1(features)))))
        return self._activation(inner + self.shortcut(features))


# CIFAR-10 with ResNet-20 (He et al. 2016), set up as in the experiments of Karimireddy et al. 2021 (docs/prior-work.md).


_PUBLISHED_DEVIATIONS = (0.2023, 0.1994, 0.2010)  # the authors' numbers; the pixels' own are larger by a quarter


@dataclass(frozen=True)
class ResNet20(CIFARTask):
    """CIFAR-10 from a folder (binary version or cifar10.npz), ResNet-20 with 0.27M parameters"""

    batch_size: int = 32
    width: int = 16  # channels of the first stage; the last has four times as many

    steps = 7800
    optimizer = "sgd:nesterov=false"
    rate = 0.1
    tau = 1.0

    def model(self) -> nn.Module:
        model = ResNet(self.width, stages=3, depth=3, deviations=_PUBLISHED_DEVIATIONS)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return model
