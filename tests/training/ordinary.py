"""Ordinary models, as their authors write them without a thought of Troth."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.examples import Lines
from troth.crypto import Stream
from troth.training import Batch, Model, Task


class Reader(nn.Module):
    """A transformer with dropout inside and outside of its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 7)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(x)))
        return out


@dataclass(frozen=True)
class Sums(Task):
    """running sums, read by a transformer"""

    def model(self) -> nn.Module:
        return Reader()

    def batch(self, draw: Stream) -> Batch:
        x = torch.from_numpy(draw.integers(7, 20)).view(4, 5)
        return {"x": x, "y": x.cumsum(1) % 7}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())


class TiedReader(Reader):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight


@dataclass(frozen=True)
class Tied(Sums):
    def model(self) -> nn.Module:
        return TiedReader()


@dataclass(frozen=True)
class HalfFrozen(Lines):
    """Its first layer and a BatchNorm's buffers are nobody's to train."""

    def model(self) -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        module[0].requires_grad_(False)
        return module


@dataclass(frozen=True)
class Accumulated(Sums):
    accumulate = 3


@dataclass(frozen=True)
class Mixed(Sums):
    autocast = "bfloat16"


@dataclass(frozen=True)
class MixedAccumulated(Accumulated):
    autocast = "bfloat16"
