"""Steps of an optimizer that are at most twice as long as is usual (SPEC U7)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from troth.training.optimizers import Optimizer, State

# D coordinates

FIRST_STEPS = 8  # steps that no usual length limits yet
STEPS = 64  # steps that the usual length looks back
STEP_FACTOR = 2.0  # limit of a step, as a multiple of the usual length


@dataclass(frozen=True)
class Bounded:
    """An optimizer whose steps are at most twice as long as is usual: the lower median of the last 64 lengths (SPEC U7).

    U3 limits the aggregate, and an optimizer that divides may still make a long step of a short one. Lengths are part of the
    state: whoever has it, or makes the updates in between itself, has them too. A step of length 0 says nothing about what is
    usual, and is left out. The first eight are limited by the optimizer alone: until then nothing is usual.
    """

    optimizer: Optimizer

    def start(self, parameters_D: Tensor) -> State:
        lengths, factor = torch.zeros(STEPS, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        return {**self.optimizer.start(parameters_D), "lengths": lengths, "factor": factor}

    def update(self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float) -> tuple[Tensor, State]:
        lengths = [length for length in state["lengths"].tolist() if length > 0]
        usual = sorted(lengths)[(len(lengths) - 1) // 2] if len(lengths) >= FIRST_STEPS else math.inf

        def shorten(length: float) -> float:
            if length <= STEP_FACTOR * usual or not math.isfinite(length):
                return 1.0
            return min(1.0, STEP_FACTOR * max(usual, self.optimizer.least_limit(gradient_D)) / length)

        made = self.optimizer.step(parameters_D, gradient_D, state, rate, shorten)
        applied = made.length * made.factor
        lengths = [*lengths, applied][-STEPS:] if 0 < applied < math.inf else lengths
        after = torch.tensor([*[0.0] * (STEPS - len(lengths)), *lengths], dtype=torch.float64)
        factor = torch.tensor([made.factor], dtype=torch.float64)
        return made.parameters_D, {**made.state, "lengths": after, "factor": factor}
