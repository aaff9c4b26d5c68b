"""Gradients on a CUDA device repeat, bit for bit; skipped where there is none.

Run on a machine with a GPU: `python -m pytest -q -p no:cacheprovider tests/training/test_cuda.py`.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.examples import Lines
from troth.crypto import Stream, derive
from troth.training import Batch, Model, Problem, Task, TaskError, check_pure, make_task
from troth.training.determinism import NotRepeatableError
from troth.training.hardware import class_digest, describe
from troth.training.measurement import measure

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@dataclass(frozen=True)
class Images(Task):
    """Convolutions and normalisation, large enough for cuDNN to have a choice of kernels"""

    def model(self) -> nn.Module:
        def block(channels: int) -> list[nn.Module]:
            return [nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]

        last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
        return nn.Sequential(*block(3), nn.MaxPool2d(2), *block(32), *last)

    def batch(self, draw: Stream) -> Batch:
        images = torch.from_numpy(draw.normal(8 * 3 * 32 * 32)).float().view(8, 3, 32, 32)
        return {"x": images, "labels": torch.from_numpy(draw.integers(10, 8)).long()}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["labels"])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 64), nn.Embedding(128, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 192) for _ in range(2))
        self.out = nn.Linear(64, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens) + self.places(torch.arange(128, device=tokens.device))
        for layer in self.layers:
            q, k, v = (part.view(-1, 128, 4, 16).transpose(1, 2) for part in layer(x).chunk(3, dim=-1))
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(-1, 128, 64)
        out: Tensor = self.out(x)
        return out


@dataclass(frozen=True)
class Letters(Task):
    """Embeddings and attention: both add up with atomics unless told otherwise"""

    def model(self) -> nn.Module:
        return Attending()

    def batch(self, draw: Stream) -> Batch:
        return {"tokens": torch.from_numpy(draw.integers(50, 4 * 128)).long().view(4, 128)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        guessed = model(batch["tokens"])[:, :-1]
        return F.cross_entropy(guessed.reshape(-1, 50), batch["tokens"][:, 1:].reshape(-1))


class MixedImages(Images):
    autocast = "bfloat16"


class MixedLetters(Letters):
    autocast = "bfloat16"


class FastImages(Images):
    tf32 = True


TASKS = [Images(), Letters(), MixedImages(), MixedLetters(), FastImages(), make_task("digits"), make_task("digits-cnn")]


@pytest.mark.parametrize("task", TASKS, ids=str)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_gradients_repeat(task: Task, one_by_one: bool) -> None:
    problem = Problem(task, device="cuda", one_by_one=one_by_one)
    check_pure(task, problem)
    flat_D, batches = problem.initial(0), [problem.batch(derive(k)) for k in range(4)]
    _, first_PD = problem.gradients(flat_D, batches)
    held = []
    for _ in range(10):
        held.append(torch.empty(1 << 20, device="cuda"))  # other addresses, and other free memory
        assert torch.equal(problem.gradients(flat_D, batches)[1], first_PD)
    other = Problem(task, device="cuda", one_by_one=one_by_one)
    assert torch.equal(other.gradients(flat_D, batches)[1], first_PD)


@dataclass(frozen=True)
class LongLetters(Letters):
    """More words than PyTorch adds up gradients of an embedding for without a race"""

    def batch(self, draw: Stream) -> Batch:
        return {"tokens": torch.from_numpy(draw.integers(50, 16 * 128)).long().view(16, 128)}


def kernels_of(compute: Callable[[], Any]) -> str:
    cuda = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=cuda, acc_events=True) as seen:  # without `acc_events` PyTorch 2.11 warns
        compute()
        torch.cuda.synchronize()
    return " ".join(event.key for event in seen.key_averages())


def test_a_gradient_of_an_embedding_does_not_come_from_the_kernel_that_races() -> None:
    """It differs once in some hundred times, and on a busy GPU alone: `benchmarks.repeats` sees that. Here its name has to do."""
    problem = Problem(LongLetters(), device="cuda", one_by_one=True, recorded=False)
    flat_D, batch = problem.initial(0), problem.batch(derive(0))
    table = torch.zeros(50, 64, device="cuda", requires_grad=True)
    problem.gradient(flat_D, batch)
    plainly = kernels_of(lambda: torch.autograd.grad(F.embedding(batch["tokens"], table).sum(), table))
    assert "embedding_backward_feature" in plainly
    found = kernels_of(lambda: problem.gradient(flat_D, batch))
    assert "indexing_backward" in found
    assert "embedding_backward_feature" not in found


def test_recordings_that_are_thrown_away_spoil_no_new_one() -> None:
    """The collector may run at any moment, and gave back an old recording in the middle of a new one: gradients were computed in
    another way then, with other bits."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert [Problem(FastImages(), device="cuda").why_not_recorded for _ in range(4)] == [""] * 4
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.filterwarnings("ignore:Please use the new API settings")  # of versions 2.9 to 2.11, about this test
def test_a_users_own_settings_do_not_reach_gradients() -> None:
    problem = Problem(Images(), device="cuda", one_by_one=True)
    flat_D, batch = problem.initial(0), problem.batch(derive(0))
    _, expected_D = problem.gradient(flat_D, batch)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.equal(problem.gradient(flat_D, batch)[1], expected_D)
        assert torch.backends.cudnn.benchmark
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")


def test_a_saved_model_has_the_same_statistics_wherever_it_was_trained() -> None:
    """[E7] Else whoever has no GPU could not check a run made on one."""
    there, here = Problem(FastImages(), device="cuda"), Problem(FastImages())
    flat_D = here.initial(0)
    saved, expected = there.state_dict(flat_D.cuda()), here.state_dict(flat_D)
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())


def test_tf32_is_another_class_and_other_bits() -> None:
    plain, fast = Problem(Images(), device="cuda"), Problem(FastImages(), device="cuda")
    assert class_digest(plain) != class_digest(fast)
    assert class_digest(plain) == class_digest(Problem(Images(), device="cuda"))
    assert torch.cuda.get_device_name() in describe(plain)
    assert "TensorFloat-32" in describe(fast)
    flat_D, batch = plain.initial(0), plain.batch(derive(0))
    one_D, other_D = plain.gradient(flat_D, batch)[1], fast.gradient(flat_D, batch)[1]
    assert 1e-6 < float((one_D - other_D).norm() / one_D.norm()) < 0.1


@dataclass(frozen=True)
class Interpolated(Images):
    """A loss with an operation that has no deterministic backward pass on CUDA"""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        pooled = F.adaptive_avg_pool2d(model[0](batch["x"]), 5)  # type: ignore[index]
        return super().loss(model, batch) + pooled.square().mean()


def test_an_operation_without_a_deterministic_version_is_named() -> None:
    with pytest.raises(NotRepeatableError, match=r"'adaptive_avg_pool2d_backward_cuda', of which PyTorch has no"):
        check_pure(Interpolated(), Problem(Interpolated(), device="cuda"))


class Atomic(torch.autograd.Function):
    """A kernel that PyTorch knows nothing of: its backward pass differs on the device, and not on the CPU."""

    calls = 0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        Atomic.calls += 1
        return grad * (1 + 2.0**-20 * Atomic.calls) if grad.is_cuda else grad


@dataclass(frozen=True)
class OwnKernel(Lines):
    one_by_one = True

    def loss(self, model: Model, batch: Batch) -> Tensor:
        out: Tensor = Atomic.apply(super().loss(model, batch))  # type: ignore[no-untyped-call]
        return out


def test_a_kernel_of_ones_own_that_does_not_repeat_is_told_from_chance() -> None:
    with pytest.raises(TaskError, match="since on the CPU it repeats, but on cuda a kernel in the backward pass"):
        check_pure(OwnKernel(), Problem(OwnKernel(), device="cuda"))


def test_a_measurement_has_the_cpu_among_its_ways() -> None:
    found = measure(Problem(Images(), device="cuda"), peers=4, seeds=4, points=2, steps=4)
    ways = {way.name: way for way in found.ways}
    assert {"one by one", "float64", "shaken inputs", "cpu"} <= set(ways)
    assert "1 thread" not in ways


def test_float64_is_clipped_as_float32_is() -> None:
    """For the doctor, which takes its distance from float32 for what another machine might compute."""

    class Short(Images):
        clip_norm = 0.01

    of = {dtype: Problem(Short(), device="cuda", dtype=dtype) for dtype in (torch.float32, torch.float64)}
    flat_D = of[torch.float32].initial(0)
    found = [problem.gradient(flat_D.to(dtype), problem.batch(derive(0, "batch")))[1] for dtype, problem in of.items()]
    torch.testing.assert_close(found[1].float(), found[0], rtol=1e-3, atol=1e-6)
    assert found[1].norm().item() == pytest.approx(0.01)
