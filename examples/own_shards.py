"""Every peer has digits of its own, of few classes each, as rules with a trusted server meet them (the protocol has no shards).

python own_shards.py
troth simulate --task own_shards.py:alpha=0.1 --byzantine 3 --attack mimic --defence median
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import troth
from troth.training.datasets import dirichlet

PIXELS, LABELS = (torch.tensor(array) for array in load_digits(return_X_y=True))


@dataclass(frozen=True)
class Dealt(troth.Task):
    alpha: float = 0.3  # the smaller, the fewer classes has a peer
    own: Sequence[int] = range(len(LABELS))  # rows of a peer

    def shard(self, peer: int, peers: int, honest: Sequence[int]) -> "Dealt":
        if peer not in honest:
            return self
        return replace(self, own=dirichlet(LABELS, len(honest), self.alpha)[honest.index(peer)].tolist())

    def model(self) -> nn.Module:
        return nn.Linear(64, 10)

    def batch(self, draw: troth.Stream) -> dict[str, Tensor]:
        rows = torch.tensor(self.own)[draw.integers(len(self.own), 16)]
        return {"pixels": PIXELS[rows].float() / 16, "labels": LABELS[rows]}

    def loss(self, model: Callable[..., Tensor], batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"])


if __name__ == "__main__":
    for alpha, rule in ((100, "mean"), (100, "median"), (0.1, "mean"), (0.1, "median")):
        result = troth.simulate(Dealt(alpha), peers=8, defence=rule, steps=60).run()
        print(f"alpha {alpha:<4} {rule:<7} loss {result.metrics['loss']:.2f}")
