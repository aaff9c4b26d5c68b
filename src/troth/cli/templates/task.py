"""A task of your own: a model, a batch from a seed, a loss.

troth tasks --check my_task.py  # is it a pure function of its seed?
troth simulate --task my_task.py --byzantine 3
troth swarm --task my_task.py --peers 5 --byzantine 1
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import Stream
from troth.training import Batch, Model, Task


@dataclass(frozen=True)
class Waves(Task):
    """fit a wave"""

    hidden: int = 16  # an option: --task my_task.py:hidden=32
    batch_size: int = 32

    # What suits it; the command line overrides these.
    steps: ClassVar[int] = 200
    optimizer: ClassVar[str] = "adamw"
    rate: ClassVar[float] = 0.01
    tau: ClassVar[float] = 1.0  # clipping radius: about as long as the difference of two honest peers' gradients

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1))

    def batch(self, draw: Stream) -> Batch:
        """All randomness comes from `draw`: whoever knows the seed can repeat the batch, and catches a liar."""
        x = torch.from_numpy(draw.uniform(self.batch_size)).float()[:, None] * 6
        return {"x": x, "y": torch.sin(x)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch["x"]), batch["y"])

    # Without it, the loss on 16 batches of a fixed seed: def evaluate(self, model) -> dict[str, float]
    # If `batch` reads files, so that a run's manifest fixes them: def data_files(self) -> list[Path]
