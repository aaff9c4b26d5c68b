"""One batched gradient call for all peers of a process that ask for their gradient at the same moment."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troth.attacks import Coalition
from troth.crypto import PeerId, Seed
from troth.protocol.core.parts import part_bounds
from troth.protocol.wire.blob import Blob, Copy
from troth.protocol.wire.primitives import Primitives
from troth.simulation.lockstep.lockstep import Ask
from troth.simulation.lockstep.memo import MemoPrimitives
from troth.training import Batch, Problem
from troth.training.hardware import gradient_on
from troth.training.work import Training, TrainingWork, finite_or_zero, finite_or_zero_rows

# P peers, D coordinates

_ARRIVING = 4  # threads that wait for gradients on their way to the host; hashing has threads of its own


@dataclass
class AskGradient(Ask):
    training: Training
    seed: Seed
    step: int
    hardware: str


class PooledWork(TrainingWork):
    """A peer's work in a simulation: its own gradient comes from the pool, everything else it computes itself."""

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        gradient_D: Tensor = await AskGradient(training, seed, step, self.hardware)
        return gradient_D

    def update(self, training: Training, aggregate_D: Tensor, step: int) -> Training:
        """Peers that hold the same bits make the same step with them: computed once, like a digest (SPEC S1)."""
        tools, update = self._tools, super().update
        if not isinstance(tools, MemoPrimitives):
            return update(training, aggregate_D, step)
        return tools.once_for((training, aggregate_D), step, lambda: update(training, aggregate_D, step))


class GradientPool:
    """Answers `AskGradient`; members of the coalition get the gradients that they want to send instead of their own."""

    def __init__(
        self, problem: Problem, coalition: Coalition, numbers: Mapping[PeerId, int], tools: Primitives
    ) -> None:
        self._problem = problem
        self._tools = tools
        self._arriving = ThreadPoolExecutor(_ARRIVING, thread_name_prefix="arriving")
        self._coalition = coalition
        self._numbers = numbers
        self.attackers: set[int] = set()  # peers that have sent a forged gradient so far
        self._losses: list[tuple[list[int], Tensor]] = []  # numbers of peers, and their losses

    @property
    def losses(self) -> dict[int, float]:
        """Losses of the last batches, by number."""
        return {peer: loss for peers, losses in self._losses for peer, loss in zip(peers, losses.tolist(), strict=True)}

    def answer(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, Tensor]:
        rows: dict[PeerId, Tensor] = {}
        self._losses = []
        for peers in _same_parameters(asks):
            rows |= self._batched({peer: asks[peer] for peer in peers})
        for peer, ask in asks.items():
            if ask.hardware and not self._poisoned(peer, ask):  # another class computes other bits
                rows[peer] = finite_or_zero(
                    gradient_on(self._problem, ask.hardware, ask.training.parameters_D, ask.seed)
                )
        self._forge(rows, next(iter(asks.values())).step)
        return rows

    def _poisoned(self, peer: PeerId, ask: AskGradient) -> bool:
        if self._numbers[peer] not in self._coalition.members:
            return False
        batch = self._problem.batch(ask.seed)
        return self._coalition.batch(ask.step, self._problem.task, batch, self._numbers[peer]) is not batch

    def _batched(self, asks: Mapping[PeerId, AskGradient]) -> dict[PeerId, Tensor]:
        """One call for peers whose parameters are the same bits; each row depends on its own seed alone."""
        batches = [self._batch(peer, ask) for peer, ask in asks.items()]
        parameters_D, numbers = next(iter(asks.values())).training.parameters_D, [self._numbers[p] for p in asks]
        if self._problem.device.type != "cpu" and self._problem.why_one_by_one:
            losses_P, rows = self._one_after_the_other(parameters_D, batches)
        else:
            losses_P, gradients_PD = self._problem.gradients(parameters_D, batches)
            rows = list(finite_or_zero_rows(gradients_PD))
        self._losses.append((numbers, losses_P))
        return dict(zip(asks, rows, strict=True))

    def _one_after_the_other(self, parameters_D: Tensor, batches: Sequence[Batch]) -> tuple[Tensor, list[Tensor]]:
        """Gradients on an accelerator: the first are copied and hashed while the last are computed."""
        bounds, tools = part_bounds(self._problem.size, len(batches)), self._tools
        losses, rows, arriving = [], [], []
        for batch in batches:
            loss, gradient_D = self._problem.begin_gradient(parameters_D, batch)
            losses.append(loss)
            rows.append(finite_or_zero(gradient_D))
            if isinstance(tools, MemoPrimitives):
                arriving.append(self._arriving.submit(Blob.cut_copy, Copy(rows[-1]), bounds))
        for row_D, cut in zip(rows, arriving, strict=False):
            assert isinstance(tools, MemoPrimitives)
            tools.was_cut(row_D, bounds, cut.result())
        return torch.stack(losses), rows

    def _batch(self, peer: PeerId, ask: AskGradient) -> Batch:
        batch = self._problem.batch(ask.seed)
        if self._numbers[peer] in self._coalition.members:
            batch = self._coalition.batch(ask.step, self._problem.task, batch, self._numbers[peer])
        return batch

    def _forge(self, rows: dict[PeerId, Tensor], step: int) -> None:
        liars = [peer for peer in rows if self._numbers[peer] in self._coalition.members]
        honest = [peer for peer in rows if peer not in liars]
        if not liars or not honest:
            return
        own_BD, honest_HD = torch.stack([rows[p] for p in liars]), torch.stack([rows[p] for p in honest])
        sent_BD = self._coalition.gradients(step, own_BD, honest_HD, [self._numbers[p] for p in liars])
        rows |= dict(zip(liars, sent_BD, strict=True))
        if self._coalition.active(step):
            self.attackers |= {self._numbers[peer] for peer in liars}


def same_bits(left_D: Tensor, right_D: Tensor) -> bool:
    """Equal byte for byte: unlike numbers, the bits of a NaN equal themselves."""
    if left_D is right_D:
        return True
    return left_D.dtype == right_D.dtype and torch.equal(left_D.view(torch.uint8), right_D.view(torch.uint8))


def _same_parameters(asks: Mapping[PeerId, AskGradient]) -> list[Sequence[PeerId]]:
    groups: list[list[PeerId]] = []
    for peer, ask in asks.items():
        for group in groups:
            if same_bits(asks[group[0]].training.parameters_D, ask.training.parameters_D):
                group.append(peer)
                break
        else:
            groups.append([peer])
    return list(groups)
