"""Tasks that are no pure function of (parameters, seed) are refused, and told what to change."""

import random
import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.examples import WITHOUT_DATA, Lines
from troth.crypto import Stream
from troth.training import Batch, Model, Problem, Task, TaskError, check_pure, make_task, problem, purity
from troth.training.determinism import repeatable, threads


@pytest.mark.parametrize("task", [*map(make_task, WITHOUT_DATA), Lines()], ids=str)
def test_pure_tasks_pass(task: Task) -> None:
    check_pure(task)
    check_pure(task, Problem(task))


@dataclass(frozen=True)
class TorchRandInBatch(Lines):
    def batch(self, draw: Stream) -> Batch:
        batch = super().batch(draw)
        return {**batch, "x": batch["x"] + torch.rand(3)}


@dataclass(frozen=True)
class NumpyRandomInBatch(Lines):
    def batch(self, draw: Stream) -> Batch:
        batch = super().batch(draw)
        return {**batch, "x": batch["x"] + np.random.normal()}


@dataclass(frozen=True)
class RandomInBatch(Lines):
    def batch(self, draw: Stream) -> Batch:
        batch = super().batch(draw)
        return {**batch, "x": batch["x"] + random.random()}


@dataclass(frozen=True)
class OwnGeneratorInBatch(Lines):
    """Touches no global generator, and still gives other numbers every time."""

    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def batch(self, draw: Stream) -> Batch:
        batch = super().batch(draw)
        return {**batch, "x": batch["x"] + self.generator.normal()}


@dataclass(frozen=True)
class SeedIgnored(Lines):
    def batch(self, draw: Stream) -> Batch:
        return {"x": torch.ones(4, 3), "y": torch.ones(4, 1)}


@dataclass(frozen=True)
class NumpyRandomInLoss(Lines):
    def loss(self, model: Model, batch: Batch) -> Tensor:
        return super().loss(model, batch) * float(np.random.random())


class Jitter(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(np.random.random())


@dataclass(frozen=True)
class NumpyRandomInForward(Lines):
    def model(self) -> nn.Module:
        return Jitter(3, 1)


class Choosing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.multinomial(torch.ones(3), 1)]


@dataclass(frozen=True)
class Multinomial(Lines):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3), Choosing())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 1, num_layers=2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out


@dataclass(frozen=True)
class RecurrentDropout(Lines):
    def model(self) -> nn.Module:
        return Recurrent()


@dataclass(frozen=True)
class NumpyRandomInModel(Lines):
    def model(self) -> nn.Module:
        module = nn.Linear(3, 1)
        nn.init.constant_(module.bias, float(np.random.random()))
        return module


class Constant(nn.Linear):
    def __init__(self, value: float) -> None:
        super().__init__(3, 1)
        self.constant = nn.Parameter(torch.tensor(value), requires_grad=False)


@dataclass(frozen=True)
class FrozenByChance(Lines):
    values: "count[int]" = field(default_factory=count)

    def model(self) -> nn.Module:
        return Constant(float(next(self.values)))


@dataclass(frozen=True)
class CounterInLoss(Lines):
    counter: "count[int]" = field(default_factory=lambda: count(1))

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return super().loss(model, batch) * next(self.counter)


class CountingModule(nn.Module):
    """Its buffer counts the calls, and the output depends on it."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        out: Tensor = self.linear(x) * self.calls
        return out


@dataclass(frozen=True)
class BufferChangedInTraining(Lines):
    def model(self) -> nn.Module:
        return CountingModule()


@dataclass(frozen=True)
class BatchChangedInLoss(Lines):
    """The gradient is the same the second time, and the batch is still spoilt for whoever uses it next."""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        batch["y"].zero_()
        return super().loss(model, batch)


@dataclass(frozen=True)
class RandomArchitecture(Lines):
    widths: "count[int]" = field(default_factory=lambda: count(1))

    def model(self) -> nn.Module:
        width = next(self.widths)
        return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))


@dataclass(frozen=True)
class NotFiniteLoss(Lines):
    def loss(self, model: Model, batch: Batch) -> Tensor:
        return super().loss(model, batch).sum() / 0.0


@dataclass(frozen=True)
class NotFiniteGradient(Lines):
    """√0 has a value, and no slope."""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return (super().loss(model, batch) * 0).sqrt()


@dataclass(frozen=True)
class NoParameters(Lines):
    def model(self) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class ShapesVaryBySeed(Lines):
    def batch(self, draw: Stream) -> Batch:
        rows = 1 + int(draw.integers(1000, 1)[0])
        return {"x": torch.ones(rows, 3), "y": torch.ones(rows, 1)}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TorchRandInBatch(), "batch() uses the global generator of torch (HERE:LINE): draw from the stream"),
        (NumpyRandomInBatch(), "batch() uses the global generator of numpy.random (HERE:LINE): draw from the stream"),
        (RandomInBatch(), "batch() uses the global generator of random (HERE:LINE): draw from the stream"),
        (OwnGeneratorInBatch(), "batch() gives another 'x' for the same seed: draw everything from its stream"),
        (SeedIgnored(), "batch() ignores its seed: every peer would compute the same gradient"),
        (NumpyRandomInLoss(), "loss() uses the global generator of numpy.random (HERE:LINE): use PyTorch's functions"),
        (
            NumpyRandomInForward(),
            "loss() uses the global generator of numpy.random in Jitter (HERE:LINE): use PyTorch's",
        ),
        (Multinomial(), "the model's '1' (Choosing) uses 'multinomial', which cannot follow from the batch's seed"),
        (
            RecurrentDropout(),
            "the model's 'lstm' (LSTM) uses dropout between the layers of 'lstm', which cannot follow",
        ),
        (NumpyRandomInModel(), "model() uses the global generator of numpy.random (HERE:LINE): use PyTorch's"),
        (FrozenByChance(), "'constant', which is not trained, is left to chance"),
        (CounterInLoss(), "loss() gives another gradient for the same parameters and batch (of 'weight' and 1 more)"),
        (BufferChangedInTraining(), "the model changes its buffer 'calls' in training"),
        (BatchChangedInLoss(), "loss() changes its batch in place ('y'): work on a copy"),
        (RandomArchitecture(), "model() builds a different module every time"),
        (NotFiniteLoss(), "loss() or its gradient is not finite at the first parameters"),
        (NotFiniteGradient(), "loss() or its gradient is not finite at the first parameters"),
        (NoParameters(), "the model has no parameters to train"),
        (ShapesVaryBySeed(), "batches of different seeds differ in shape"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Task) else "",
)
def test_impure_tasks_are_told_what_to_change(task: Task, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        check_pure(task)
    pattern = re.escape(message).replace("HERE", re.escape(__file__)).replace("LINE", r"\d+")
    assert re.match(pattern, str(caught.value)), str(caught.value)


class Racing(torch.autograd.Function):
    """A kernel whose backward pass comes out otherwise every time, unless there is but one thread; stands for a race."""

    generate_vmap_rule = True
    calls = count(1)

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad if torch.get_num_threads() == 1 else grad + 1e-3 * next(Racing.calls)


@dataclass(frozen=True)
class RacingKernel(Lines):
    def loss(self, model: Model, batch: Batch) -> Tensor:
        out: Tensor = Racing.apply(super().loss(model, batch))  # type: ignore[no-untyped-call]
        return out


class OnADeviceThatRaces(Problem):
    """Stands for an accelerator: each gradient is off in its last bits in its own way."""

    def gradient(self, flat_D: Tensor, batch: Batch) -> tuple[float, Tensor]:
        loss, gradient_D = super().gradient(flat_D, batch)
        return loss, gradient_D * (1 + 2.0**-20 * next(Racing.calls))


@dataclass(frozen=True)
class Unpooling(CounterInLoss):
    """Impure, and with an operation of which PyTorch says that it might be the reason."""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        unpooled = F.max_unpool1d(model(batch["x"]).view(1, 1, 4), torch.arange(0, 8, 2).view(1, 1, 4), [2])
        return unpooled.sum() + super().loss(model, batch)


class TestKernels:
    """A kernel's own non-determinism is told from chance and state in the user's code."""

    def test_what_repeats_with_one_thread_is_a_kernels_fault(self) -> None:
        with threads(2), pytest.raises(TaskError) as caught:
            check_pure(RacingKernel())
        said = str(caught.value)
        assert "(of 'weight' and 1 more): the task is pure, since with one it repeats" in said
        assert "but with 2 threads a kernel in the backward pass of loss() does not" in said
        assert said.endswith("Use another layer or function in its place, or compute with --threads 1")
        with threads(1):
            check_pure(RacingKernel())

    def test_what_repeats_on_the_cpu_is_a_kernels_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        racing = OnADeviceThatRaces(Lines(), one_by_one=True)
        monkeypatch.setattr(
            purity,
            "_plainer",
            lambda _: purity._Plainer("on cuda", "on the CPU", "compute there", Problem(Lines()), nullcontext()),
        )
        with pytest.raises(TaskError) as caught:
            check_pure(racing.task, racing)
        assert "since on the CPU it repeats, but on cuda a kernel in the backward pass of loss() does not" in str(
            caught.value
        )

    def test_what_repeats_nowhere_is_the_tasks_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        message = r"for the same parameters and batch .*: it keeps state or uses chance$"
        with threads(2), pytest.raises(TaskError, match=message):
            check_pure(CounterInLoss())
        counting, elsewhere = (OnADeviceThatRaces(Lines(), one_by_one=True) for _ in range(2))
        monkeypatch.setattr(
            purity, "_plainer", lambda _: purity._Plainer("on cuda", "on the CPU", "", elsewhere, nullcontext())
        )
        with pytest.raises(TaskError, match=message):
            check_pure(counting.task, counting)

    @pytest.mark.filterwarnings("ignore:max_unpooling2d_forward_out does not have a deterministic")
    def test_an_operation_that_pytorch_names_is_named(self) -> None:
        with (
            threads(1),
            pytest.raises(TaskError, match="it uses 'max_unpooling2d_forward_out', which PyTorch does not"),
        ):
            check_pure(Unpooling())

    def test_a_task_that_needs_one_on_an_accelerator_is_refused_with_its_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """CPU tensors under the settings for CUDA: PyTorch refuses this operation on both."""
        monkeypatch.setattr(problem, "repeatable", lambda _, tf32: repeatable(torch.device("cuda"), tf32=tf32))
        with pytest.raises(
            TaskError, match="needs 'max_unpooling2d_forward_out', of which PyTorch has no deterministic"
        ):
            check_pure(Unpooling())


@dataclass(frozen=True)
class DropoutInBatch(Lines):
    """How it is meant to be done: the mask travels in the batch."""

    def batch(self, draw: Stream) -> Batch:
        keep = torch.from_numpy(draw.uniform(12) < 0.5).float().view(4, 3)
        return {**super().batch(draw), "keep": keep}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return super().loss(model, {**batch, "x": batch["x"] * batch["keep"]})


def test_dropout_drawn_in_the_batch_is_pure() -> None:
    check_pure(DropoutInBatch())
