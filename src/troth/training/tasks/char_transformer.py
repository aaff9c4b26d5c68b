"""A transformer that predicts the next byte of a text."""

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.training.datasets import Table
from troth.training.task import Batch, Model
from troth.training.tasks.texts import TextTask, bytes_of

# B sequences of a batch, L places in a sequence, H heads, W width

_BYTES = 256
_HELD_OUT_BATCHES = 8


@dataclass(frozen=True)
class CharTransformer(TextTask):
    """the next byte of a text file (plain, .gz or .xz), a transformer with 10.9M parameters"""

    layers: int = 6
    width: int = 384
    heads: int = 6

    classes = _BYTES
    steps = 5000
    optimizer = "adamw:beta2=0.99,weight_decay=0.1"
    rate = 0.001
    tau = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")

    def text(self) -> Table:
        return bytes_of(self.data)

    def model(self) -> nn.Module:
        return _Transformer(self.layers, self.width, self.heads, self.length)

    def sequences(self, device: torch.device, draw: Stream, first: int, last: int) -> Batch:
        starts_B = self.starts(draw, first, last, self.length)
        windows = self.text().rows(starts_B[:, None] + np.arange(self.length + 1), device)
        return {"text": windows[:, :-1], "labels": windows[:, 1:]}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["text"]).flatten(0, 1), batch["labels"].flatten().long())

    def evaluate(self, model: Model) -> dict[str, float]:
        batches = [self.held_out_batch(stream(0, "held out", k)) for k in range(_HELD_OUT_BATCHES)]
        loss = sum(float(self.loss(model, batch)) for batch in batches) / len(batches)
        return {"loss": loss, "bits_per_byte": loss / log(2)}


class _Transformer(nn.Module):
    """Blocks of attention and a feed-forward layer, each on a normalised input and added to it (as in GPT-2)."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(_BYTES, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads, length) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _BYTES, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02 / (sqrt(2 * layers) if name.endswith("out.weight") else 1))

    def forward(self, text: Tensor) -> Tensor:
        features = self.bytes(text.long()) + self.places.weight[: text.shape[-1]]
        logits: Tensor = self.head(self.norm(self.blocks(features)))
        return logits


class _Block(nn.Module):
    later: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.inner_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        later_LL = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later_LL, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        features = features + self._attention(self.norm1(features))
        added: Tensor = features + self.inner_out(F.gelu(self.inner(self.norm2(features))))
        return added

    def _attention(self, features_BLW: Tensor) -> Tensor:
        """Spelled out: fused kernels differ in their bits from machine to machine, and some from call to call."""
        count, length, width = features_BLW.shape
        split = self.attention_in(features_BLW).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores_BHLL = query @ key.transpose(-2, -1) * (1 / sqrt(width // self.heads))
        weights_BHLL = scores_BHLL.masked_fill(self.later[:length, :length], float("-inf")).softmax(dim=-1)
        mixed = (weights_BHLL @ value).transpose(1, 2).reshape(count, length, width)
        out: Tensor = self.attention_out(mixed)
        return out
