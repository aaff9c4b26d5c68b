"""Most rows of the table are untouched by a batch: their gradient is zero, in most parts everyone's."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training import Batch, Model, Task


@dataclass(frozen=True)
class Phrases(Task):
    """tell four kinds of words apart, eight words in a batch"""

    vocabulary: int = 512
    width: int = 4
    classes = 4
    rate = 0.1
    tau = 1.0
    optimizer = "sgd"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(self.vocabulary, self.width), nn.Linear(self.width, 4))

    def batch(self, draw: Stream) -> Batch:
        uniform = torch.from_numpy(draw.uniform(8))
        words = ((uniform * math.log(self.vocabulary)).exp() - 1).long().clamp(0, self.vocabulary - 1)  # Zipf's law
        return {"words": words, "labels": words % 4}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["words"]), batch["labels"])

    def initialise(self, model: nn.Module, draw: Stream) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                normal = torch.from_numpy(draw.normal(parameter.numel())).float()
                parameter.copy_(0.1 * normal.reshape(parameter.shape))
