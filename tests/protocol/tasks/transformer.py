"""A transformer small enough for hundreds of steps in a test."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training import Batch, Model, Task

WORDS, LENGTH = 32, 12


class Tiny(nn.Module):
    """Two heads, one block, and no dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.first, self.second, self.last = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions(torch.arange(words.shape[1]))
        query, key, value = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.look(self.first(x)).chunk(3, dim=-1)
        )
        past = torch.ones(words.shape[1], words.shape[1]).tril().log()  # −∞ where the future is
        seen = (query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5 + past).softmax(dim=-1) @ value
        x = x + self.join(seen.transpose(1, 2).flatten(-2))
        x = x + self.think(self.second(x))
        head: Tensor = self.head(self.last(x))
        return head


@dataclass(frozen=True)
class Sequences(Task):
    """say the next of words that follow a fixed rule"""

    width: int = 16
    rate = 0.1
    tau = 1.0
    optimizer = "sgd"

    def model(self) -> nn.Module:
        return Tiny(self.width)

    def batch(self, draw: Stream) -> Batch:
        first = torch.from_numpy(draw.uniform(8) * WORDS).long()
        rows = [first]
        for _ in range(LENGTH):
            rows.append((3 * rows[-1] + 1) % WORDS)
        return {"words": torch.stack(rows, dim=1)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        said = model(batch["words"][:, :-1])
        return F.cross_entropy(said.flatten(0, 1), batch["words"][:, 1:].flatten())
