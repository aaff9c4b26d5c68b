"""A task as functions of a flat vector: first parameters, gradients, evaluation, and the trained module."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, replace_all_batch_norm_modules_, vmap
from torch.nn.parameter import is_lazy

from troth.clip.exact import exact_norm
from troth.crypto import Seed, derive, stream
from troth.training import determinism
from troth.training.determinism import NotRepeatableError, check_environment, repeatable
from troth.training.first_values import FirstValues
from troth.training.gradient_calls import (
    GradientGraph,
    Lanes,
    Placed,
    calibrate,
    fixed_generator,
    mean_of,
    norms_of,
    padded,
    record,
    settle,
    upload,
)
from troth.training.metrics import Metric, measure
from troth.training.random_answers import SeededNoise, seed_tensor
from troth.training.task import Batch, Task, TaskError, draw_batch
from troth.training.user_code import calling, one_number, why_not_batched
from troth.training.weights import Layout, complete_state, flat_of

# P peers, D coordinates

_LARGE = 1 << 25  # parameters of a model whose template must not take up memory
NOISE = "troth:noise"  # the batch's seed for dropout, taken out before the loss sees the batch

_Computes = Callable[[dict[str, Tensor], Batch], tuple[dict[str, Tensor], Tensor]]


class Problem:
    """A task's module as a template; parameters are always passed in, so every method is pure."""

    def __init__(
        self,
        task: Task,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        one_by_one: bool = False,
        lanes_for: int | None = None,
        recorded: bool = True,
        pad: bool = False,
    ) -> None:
        """`lanes_for`: the number of peers whose gradients may be computed in one call; `pad`: see `settle`."""
        self.task = task
        self.device = torch.device(device)
        self.dtype = dtype
        self.drawn: Counter[str] = Counter()  # random functions that the last loss called, dropout for instance
        _check_options(task)
        check_environment(self.device)
        with determinism.watching(task):
            self._template = self._build()
            replace_all_batch_norm_modules_(self._template)  # batch statistics, and no buffer that a step would change
            self._whole = _LossOf(task, self._template)
            _check_shapes(self._template)
            self.layout = Layout.of(self._template)
            if self.layout.size == 0:
                raise TaskError("the model has no parameters to train")
            if self.layout.size >= _LARGE:
                _empty(self._template)
            self._one_gradient = grad_and_value(self._loss)
            self._gradients = vmap(self._one_gradient, in_dims=(None, 0))
            self.lanes = Lanes()
            recording = self._recorded() if recorded and self.device.type == "cuda" else "not asked for"
            self._graph = None if isinstance(recording, str) else recording
            self.why_not_recorded = recording if isinstance(recording, str) else ""
            self.why_one_by_one = self._why_one_by_one(one_by_one)
        if lanes_for is not None and not self.why_one_by_one:
            self._settle_lanes(lanes_for, pad=pad)

    @property
    def size(self) -> int:
        """D, the number of trained parameters."""
        return self.layout.size

    @property
    def streams(self) -> Sequence[torch.cuda.Stream]:
        """Streams on which gradients run side by side; none where a gradient is not a recording of kernels."""
        return () if self._graph is None else self._graph.streams

    @property
    def frozen(self) -> int:
        """Number of parameters with `requires_grad=False`: constants that `model()` makes, equal for everyone."""
        return sum(p.numel() for p in self._template.parameters() if not p.requires_grad)

    def buffers(self) -> dict[str, Tensor]:
        """The module's tensors beside parameters; training must leave them as they are."""
        return dict(self._template.named_buffers())

    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers of a module that is built anew, as everyone gets them."""
        return {name: tensor for name, tensor in self._fresh().state_dict().items() if name not in self.layout.names}

    def initial(self, seed: bytes | int) -> Tensor:
        """The first parameters of a run: drawn in float32 on the CPU, so that they are the same bits everywhere."""
        draw = stream(seed, "initialise")
        values = FirstValues(draw)
        with values, calling("model"):
            module = self.task.model()
        with values, calling("initialise"):
            self.task.initialise(module, draw)
        if Layout.of(module) != self.layout:
            raise TaskError("model() builds a different module every time: its layers must not depend on chance")
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        values.check(trained.items())
        return self.layout.flatten({name: p.detach() for name, p in trained.items()}).to(self.device, self.dtype)

    def batch(self, seed: Seed, shard: Task | None = None) -> Batch:
        """The minibatch of a public seed, or of a peer's shard; with accumulation, micro-batches along a first axis."""
        task, count = shard or self.task, self.task.accumulate
        if count == 1:
            return self._micro_batch(seed, task)
        parts = [self._micro_batch(derive(seed, "micro-batch", k), task) for k in range(count)]
        return _stacked(parts)

    def task_part(self, batch: Batch) -> Batch:
        """The batch as the task made it and its loss sees it: without the seed of the noise."""
        return {name: tensor for name, tensor in batch.items() if name != NOISE}

    def gradient(self, flat_D: Tensor, batch: Batch) -> tuple[float, Tensor]:
        """Loss and gradient of one batch."""
        loss, gradient_D = self.begin_gradient(flat_D, batch)
        return float(loss), gradient_D

    def begin_gradient(self, flat_D: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same, without waiting for an accelerator."""
        with calling("loss"), repeatable(self.device, tf32=self.task.tf32):
            compute = self._graph or self._one
            loss, gradient_D = compute(flat_D, batch)
        return loss, clipped(gradient_D, self.task.clip_norm)

    def _one(self, flat_D: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._computed(self._one_gradient, flat_D, batch, leading=0)

    def gradients(self, flat_D: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Losses and gradients of many peers at the same parameters: one call where the task allows."""
        if self.why_one_by_one:
            results = self.begin_gradients(flat_D, batches)
            return torch.stack([loss for loss, _ in results]), _rows([gradient_D for _, gradient_D in results])
        drawn = list(batches)
        with calling("loss"):
            losses_P, gradients_PD = self._together(flat_D, padded(drawn, self.lanes.width(len(drawn))))
        for gradient_D in gradients_PD[: len(drawn)]:
            clipped(gradient_D, self.task.clip_norm)  # in place
        return losses_P[: len(drawn)], gradients_PD[: len(drawn)]

    def begin_gradients(self, flat_D: Tensor, batches: Iterable[Batch]) -> list[tuple[Tensor, Tensor]]:
        """Losses and gradients one by one, without waiting; recorded ones on several streams of the accelerator."""
        if self._graph is None or self.task.clip_norm is not None:  # the host has to know its length first
            return [self.begin_gradient(flat_D, batch) for batch in batches]
        return self._graph.spread(lambda batch: self.begin_gradient(flat_D, batch), batches)

    @torch.no_grad()
    def evaluate(self, flat_D: Tensor, metrics: Mapping[str, Metric] | None = None) -> dict[str, float]:
        """The task's own metrics and `metrics`, with BatchNorm's running statistics recomputed from a public seed."""
        module = self._trained(flat_D)
        plain = self.device.type == "cpu" and self.dtype == torch.float32
        with fixed_generator():
            return measure(self.task, module if plain else Placed(module, self._place), metrics or {})

    @torch.no_grad()
    def module(self, flat_D: Tensor) -> nn.Module:
        """The task's own module, BatchNorm calibrated, on the CPU and ready to use, whatever this problem computes on."""
        module = self._fresh()
        _load(module, self, flat_D)
        return module.eval()

    def state_dict(self, flat_D: Tensor) -> dict[str, Tensor]:
        """Every tensor of `module(flat_D)`, to be saved: loads with `strict=True` into a new `task.model()`."""
        return complete_state(self.module(flat_D))

    def flat_of(self, named: Mapping[str, Tensor]) -> Tensor:
        """The vector of these weights, a complete state dict or the trained parameters alone; an error if they do not fit."""
        return flat_of(self._fresh(), self.layout, named).to(self.device, self.dtype)

    def _fresh(self) -> nn.Module:
        """The module as its author builds it; what chance decides in it (frozen layers, buffers) is equal for everyone."""
        with FirstValues(stream(0, "template")), calling("model"):
            return self.task.model()

    def _build(self) -> nn.Module:
        return self._fresh().to(self.device, self.dtype).train()

    def _trained(self, flat_D: Tensor) -> nn.Module:
        module = self._build()
        module.load_state_dict(self.layout.views(flat_D), strict=False)
        module.eval()
        calibrate(self.task, module, lambda seed: self.task_part(self._micro_batch(seed, self.task)))
        return module

    def _micro_batch(self, seed: Seed, task: Task) -> Batch:
        with calling("batch"):
            batch = draw_batch(task, self.device, stream(seed, "batch"))
        if not isinstance(batch, Mapping) or not all(isinstance(value, Tensor) for value in batch.values()):
            raise TaskError("batch() returns something else than a dict of tensors: name every tensor of the batch")
        placed: Batch = {name: self._place(tensor) for name, tensor in batch.items()}
        return placed | {NOISE: upload(seed_tensor(seed), self.device)}

    def _loss(self, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        seen = self.task_part(batch)
        noise = SeededNoise(batch.get(NOISE))
        kind = self.task.autocast
        precision = (
            torch.autocast(self.device.type, getattr(torch, kind), cache_enabled=False) if kind else nullcontext()
        )
        with noise, precision:
            loss = functional_call(self._whole, {f"model.{name}": p for name, p in parameters.items()}, (seen,))
        self.drawn = noise.drawn
        return one_number(loss).to(self.dtype)

    def depends_on_parameters(self, flat_D: Tensor, batch: Batch) -> bool:
        """Whether a gradient reaches the parameters at all, or something in the loss is detached."""
        leaves = {name: view.detach().clone().requires_grad_() for name, view in self.layout.views(flat_D).items()}
        one = batch if self.task.accumulate == 1 else {name: tensor[0] for name, tensor in batch.items()}
        return self._loss(leaves, one).requires_grad

    def _computed(self, computes: _Computes, flat_D: Tensor, batch: Batch, leading: int) -> tuple[Tensor, Tensor]:
        """Loss and flat gradient, the mean over micro-batches where there are several: one at a time, summed in order."""
        views, count = self.layout.views(flat_D), self.task.accumulate
        if count == 1:
            gradients, loss = computes(views, batch)
            flat = self.layout.flatten(gradients, leading) if leading else self.layout.moved(gradients)
            return loss.detach(), flat
        return mean_of(lambda one: computes(views, one), batch, count, self.layout, leading)

    def _recorded(self) -> GradientGraph | str:
        """A recording of one gradient, or the reason why the task's loss does not allow it."""
        flat_D, batches = self.initial(0), [self.batch(derive(0, "recording", k)) for k in range(2)]
        try:
            with repeatable(self.device, tf32=self.task.tf32):
                return record(self._one, flat_D, batches, side_by_side=self.task.clip_norm is None)
        except Exception as error:  # the loss is wrong in itself, and the checks that follow say how
            return str(error)

    def _together(self, flat_D: Tensor, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        with repeatable(self.device, tf32=self.task.tf32), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
            return self._computed(self._gradients, flat_D, _stacked(batches), leading=1)

    def _place(self, value: Any) -> Any:
        """Move a tensor to this problem's device, and its numbers (not indices) to its number format."""
        if not isinstance(value, Tensor):
            return value
        return value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)

    def _settle_lanes(self, peers: int, *, pad: bool) -> None:
        flat_D, batches = self.initial(0), [self.batch(derive(0, "lane probe", k)) for k in range(peers)]
        try:
            with calling("loss"):
                found = settle(lambda some: self._together(flat_D, some)[1], batches, pad=pad)
        except TaskError as error:
            if not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
            found = None
        if found is None:
            self.why_one_by_one = "batching changes bits"
        else:
            self.lanes = found

    def _why_one_by_one(self, asked: bool) -> str:
        """Empty when all peers' gradients go through one `vmap` call; otherwise the reason why not."""
        if asked:
            return "asked for"
        if self.task.one_by_one:
            return "the task says so"
        if self._graph is not None:
            return "one by one, recorded as a graph"
        # Differences of the last bit vanish in most roundings to bfloat16, not in all.
        if self.task.autocast is not None:
            return "mixed precision hides from a probe whether batching changes bits"
        batches = [self.batch(derive(0, "vmap probe", k)) for k in range(2)]
        shapes = [{n: tuple(t.shape) for n, t in self.task_part(batch).items()} for batch in batches]
        if shapes[0] != shapes[1]:
            raise TaskError(f"batches of different seeds differ in shape ({shapes[0]} and {shapes[1]}): pad them")
        flat_D = self.initial(0)
        try:
            self._together(flat_D, batches)
        except Exception as error:
            if isinstance(error, TaskError) and not isinstance(error, NotRepeatableError):
                raise
            # A loss that is wrong in itself must not hide behind "vmap cannot do it".
            _check_differentiable(self, flat_D, batches[0])
            return str(error) if isinstance(error, NotRepeatableError) else why_not_batched(str(error))
        return ""


def clipped(gradient_D: Tensor, most: float | None) -> Tensor:
    """Scale a gradient in place to a length of at most `most`: `g·min(1, most/‖g‖)` (Clipped-SGD).

    Length and factor have the same bits on every machine, one by one or in a batch. What is not finite stays so.
    """
    if most is not None and (length := exact_norm(gradient_D)) > most:
        gradient_D.mul_(most / length)
    return gradient_D


def _check_differentiable(problem: Problem, flat_D: Tensor, batch: Batch) -> None:
    try:
        problem.gradient(flat_D, batch)
    except TaskError as error:
        if "in-place" not in str(error.__cause__):
            raise
        buffers = ", ".join(f"'{name}'" for name in problem.buffers()) or "none"
        raise TaskError(
            f"the loss changes a tensor in place that it must not: a buffer of the model (it has {buffers}) or its "
            "batch; a step would depend on the steps before"
        ) from error


def _load(module: nn.Module, problem: Problem, flat_D: Tensor) -> None:
    """Load parameters, and the statistics that follow from them: computed in float64 and on the CPU, they are the same on every
    machine, once rounded to float32, but for the last bit (SPEC E7)."""
    task, trained_D = problem.task, flat_D.cpu()
    module.load_state_dict(problem.layout.views(trained_D), strict=False)
    if norms_of(module):
        try:
            calibrated = Problem(task, dtype=torch.float64, one_by_one=True)._trained(trained_D.double())
        except TaskError:  # a loss that makes tensors of float32 itself; or one that fails, which says so once more
            calibrated = Problem(task, one_by_one=True)._trained(trained_D.float())
        module.load_state_dict(calibrated.state_dict())


def _check_options(task: Task) -> None:
    if not isinstance(task.accumulate, int) or not 1 <= task.accumulate <= 1 << 20:
        raise TaskError(f"Task.accumulate is a number of micro-batches, at least 1, got {task.accumulate!r}")
    if task.clip_norm is not None and not 0 < task.clip_norm < inf:
        raise TaskError(f"Task.clip_norm is None or a positive number, got {task.clip_norm!r}")
    if task.autocast not in (None, "bfloat16"):
        raise TaskError(f'Task.autocast is None or "bfloat16", got {task.autocast!r}')
    if not isinstance(task.tf32, bool):
        raise TaskError(f"Task.tf32 is True or False, got {task.tf32!r}")


def _check_shapes(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise TaskError(f"parameter '{name}' has no shape yet (a lazy module): give its layer all sizes in model()")


def _empty(module: nn.Module) -> None:
    """Give back the memory of trained parameters: `functional_call` puts others in their place."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)


def _rows(vectors: Sequence[Tensor]) -> Tensor:
    """A matrix with these rows; of one vector without a copy."""
    return vectors[0][None] if len(vectors) == 1 else torch.stack(list(vectors))


def _stacked(batches: Sequence[Batch]) -> Batch:
    return {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}


class _LossOf(nn.Module):
    """A task's loss as a module: inside it the model's own attributes and methods all use the parameters passed in."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss_of_task = task  # `calling_module` tells it by this from the model's own modules

    def forward(self, batch: Batch) -> Tensor:
        return self.loss_of_task.loss(self.model, batch)
