"""A task as functions of a flat vector: first parameters, gradients, evaluation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, replace_all_batch_norm_modules_, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from troth.crypto import Seed, derive, stream
from troth.training.errors import TaskError
from troth.training.layout import Layout
from troth.training.task import Batch, Model, Task

# P peers, D coordinates

_CALIBRATION_SEED = derive(0, "batchnorm calibration")  # public, so that everyone evaluates the same function
_CALIBRATION_BATCHES = 32


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
    ) -> None:
        self.task = task
        self.device = torch.device(device)
        self.dtype = dtype
        self._template = self._build()
        replace_all_batch_norm_modules_(self._template)  # batch statistics, and no buffer that a step would change
        frozen = [name for name, parameter in self._template.named_parameters() if not parameter.requires_grad]
        if frozen:
            raise TaskError(f"parameter '{frozen[0]}' is frozen: register tensors that are not trained as buffers")
        self.layout = Layout.of(self._template)
        if self.layout.size == 0:
            raise TaskError("the model has no parameters to train")
        self._one_gradient = grad_and_value(self._loss)
        self._gradients = vmap(self._one_gradient, in_dims=(None, 0))
        self._lanes = 1
        self.why_one_by_one = self._why_one_by_one(one_by_one)
        if lanes_for is not None and not self.why_one_by_one:
            self._settle_lanes(lanes_for)

    @property
    def size(self) -> int:
        """D, the number of parameters."""
        return self.layout.size

    def buffers(self) -> dict[str, Tensor]:
        """The module's tensors beside parameters; training must leave them as they are."""
        return dict(self._template.named_buffers())

    def initial(self, seed: bytes | int) -> Tensor:
        """The first parameters of a run: drawn in float32 on the CPU, so that they are the same bits everywhere."""
        module = self.task.model()
        self.task.initialise(module, stream(seed, "initialise"))
        flat_D = self.layout.flatten({name: p.detach() for name, p in module.named_parameters()})
        return flat_D.to(self.device, self.dtype)

    def batch(self, seed: Seed) -> Batch:
        """The minibatch of a public seed, on this problem's device."""
        batch = self.task.batch(stream(seed, "batch"))
        return {name: tensor.to(self.device, self._cast(tensor)) for name, tensor in batch.items()}

    def gradient(self, flat_D: Tensor, batch: Batch) -> tuple[float, Tensor]:
        """Loss and gradient of one batch."""
        gradients, loss = self._one_gradient(self.layout.views(flat_D), batch)
        return float(loss), self.layout.flatten(gradients)

    def gradients(self, flat_D: Tensor, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Losses and gradients of many peers at the same parameters: one call where the task allows."""
        if self.why_one_by_one:
            results = [self.gradient(flat_D, batch) for batch in batches]
            losses_P = torch.tensor([loss for loss, _ in results], dtype=self.dtype, device=self.device)
            return losses_P, torch.stack([gradient for _, gradient in results])
        padded = [*batches, *[batches[-1]] * (self._lanes - len(batches))]
        stacked = {name: torch.stack([batch[name] for batch in padded]) for name in padded[0]}
        gradients, losses_P = self._gradients(self.layout.views(flat_D), stacked)
        return losses_P[: len(batches)], self.layout.flatten(gradients, leading=1)[: len(batches)]

    @torch.no_grad()
    def evaluate(self, flat_D: Tensor) -> dict[str, float]:
        """The task's own metrics, with BatchNorm's running statistics recomputed from a public calibration seed."""
        module = self._build()
        module.load_state_dict(self.layout.views(flat_D), strict=False)
        module.eval()
        self._calibrate(module)
        return self.task.evaluate(self._cast_inputs(module))

    def _build(self) -> nn.Module:
        return self.task.model().to(self.device, self.dtype).train()

    def _loss(self, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        def model(*arguments: Any, **named: Any) -> Any:
            return functional_call(self._template, parameters, arguments, named)

        return self.task.loss(model, batch)

    def _calibrate(self, module: nn.Module) -> None:
        norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain average over the calibration batches
            norm.train()
        for k in range(_CALIBRATION_BATCHES if norms else 0):
            self.task.loss(module, self.batch(derive(_CALIBRATION_SEED, k)))
        module.eval()

    def _cast_inputs(self, module: nn.Module) -> Model:
        """Move evaluation data, which stays as the task made it, to the module's device and number format on each call."""

        def place(value: Any) -> Any:
            return value.to(self.device, self._cast(value)) if isinstance(value, Tensor) else value

        def model(*arguments: Any, **named: Any) -> Any:
            outputs = module(*map(place, arguments), **{name: place(value) for name, value in named.items()})
            return outputs.cpu() if isinstance(outputs, Tensor) else outputs

        return model

    def _cast(self, tensor: Tensor) -> torch.dtype:
        return self.dtype if tensor.is_floating_point() else tensor.dtype

    def _check_differentiable(self, batch: Batch) -> None:
        try:
            self._one_gradient(self.layout.views(self.initial(0)), batch)
        except RuntimeError as error:
            if "in-place" not in str(error):
                raise
            buffers = ", ".join(f"'{name}'" for name, _ in self._template.named_buffers()) or "none"
            raise TaskError(
                f"the loss changes a tensor in place that it must not: a buffer of the model (it has {buffers}) or its "
                "batch; a step would depend on the steps before"
            ) from error

    def _settle_lanes(self, peers: int) -> None:
        """Find the width from which on a peer's bits no longer depend on how many others share its call.

        An auditor recomputes one gradient, the pool computes many in one call, and both must give the same bits. Kernels
        are chosen by shape, so one probe per width tells; where no width will do, everything is computed one by one.
        """
        flat_D = self.initial(0)
        batches = [self.batch(derive(0, "lane probe", k)) for k in range(peers)]
        _, widest_PD = self.gradients(flat_D, batches)
        for width in range(peers - 1, 0, -1):
            _, narrow_PD = self.gradients(flat_D, batches[-width:])
            if not torch.equal(narrow_PD, widest_PD[-width:]):
                self._lanes = width + 1
                break
        if self._lanes > max(2, peers // 4):
            self._lanes, self.why_one_by_one = 1, "batching changes bits"

    def _why_one_by_one(self, asked: bool) -> str:
        """Empty when all peers' gradients go through one `vmap` call; otherwise the reason why not."""
        if asked:
            return "asked for"
        if self.task.one_by_one:
            return "the task says so"
        batches = [self.batch(derive(0, "vmap probe", k)) for k in range(2)]
        shapes = [{name: tuple(tensor.shape) for name, tensor in batch.items()} for batch in batches]
        if shapes[0] != shapes[1]:
            raise TaskError(f"batches of different seeds differ in shape ({shapes[0]} and {shapes[1]}): pad them")
        stacked = {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}
        try:
            self._gradients(self.layout.views(self.initial(0)), stacked)
        except (RuntimeError, ValueError, TypeError) as error:
            # A loss that is wrong in itself must not hide behind "vmap cannot do it".
            self._check_differentiable(batches[0])
            return str(error).strip().splitlines()[0]
        return ""
