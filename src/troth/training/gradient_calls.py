"""One gradient as a CUDA graph: its kernels are recorded once and launched together, with the same bits, several times as fast.

A small batch keeps a GPU busy for less time than Python takes to launch its kernels one by one. Nor does it keep all of the GPU
busy: so there are several recordings, each with memory and a stream of its own, which run side by side.
"""

import gc
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from troth.crypto import Seed, derive
from troth.protocol.wire.blob import bytes_of
from troth.training.task import Batch, Task
from troth.training.user_code import calling
from troth.training.weights import Layout

# P peers, D coordinates


Compute = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]  # parameters, batch -> loss, gradient
_WARM_UPS = 3  # calls before the recording, in which libraries choose kernels and allocate
_RECORDINGS = 4
_TRIES = 2  # what else of the process used the device at the wrong moment must not decide how a gradient is computed
_SHARE = 8  # of the device's free memory, further recordings take up at most one part in so many


class _Recording:
    """A recorded gradient. All its work is done on its own stream, since it has its memory to itself there."""

    def __init__(self, compute: Compute, flat_D: Tensor, batch: Batch) -> None:
        self.stream = torch.cuda.Stream(flat_D.device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(flat_D.device))
        with torch.cuda.stream(self.stream):
            self._flat_D = flat_D.clone()
            self._batch = {name: tensor.clone() for name, tensor in batch.items()}
            for _ in range(_WARM_UPS):
                compute(self._flat_D, self._batch)
        torch.cuda.current_stream(flat_D.device).wait_stream(self.stream)
        self._graph = torch.cuda.CUDAGraph()
        # Libraries have a workspace for every stream.
        with _nothing_collected(), torch.cuda.graph(self._graph, stream=self.stream):
            self._loss, self._gradient_D = compute(self._flat_D, self._batch)

    def __call__(self, flat_D: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same from any stream, which waits for it."""
        here = torch.cuda.current_stream(flat_D.device)
        if here == self.stream:
            return self.begin(flat_D, batch)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            found = self.begin(flat_D, batch)
        here.wait_stream(self.stream)
        for tensor in (flat_D, *batch.values()):
            tensor.record_stream(self.stream)
        for tensor in found:
            tensor.record_stream(here)
        return found

    def begin(self, flat_D: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and gradient, on this recording's own stream."""
        self._flat_D.copy_(flat_D)
        for name, tensor in batch.items():
            self._batch[name].copy_(tensor)
        self._graph.replay()
        return self._loss.clone(), self._gradient_D.clone()


class GradientGraph:
    """A recorded gradient. Batches must have the shapes of the one that it was recorded with."""

    def __init__(self, compute: Compute, flat_D: Tensor, batch: Batch, most: int) -> None:
        before = torch.cuda.memory_reserved(flat_D.device)
        self._recordings = [_Recording(compute, flat_D, batch)]
        took = torch.cuda.memory_reserved(flat_D.device) - before
        free = torch.cuda.mem_get_info(flat_D.device)[0]
        more = min(most - 1, free // _SHARE // max(1, took))
        self._recordings += [_Recording(compute, flat_D, batch) for _ in range(more)]

    @property
    def streams(self) -> Sequence[torch.cuda.Stream]:
        """A gradient that is asked for on one of these runs beside those on the others."""
        return [recording.stream for recording in self._recordings]

    def spread(
        self, begin: Callable[[Batch], tuple[Tensor, Tensor]], batches: Iterable[Batch]
    ) -> list[tuple[Tensor, Tensor]]:
        """`begin` of every batch, one stream after the other; the caller's stream waits for all of them.

        Batches may be drawn one by one: the first gradients are computed meanwhile."""
        here, found = torch.cuda.current_stream(self.streams[0].device), []
        for batch, stream in zip(batches, cycle(self.streams), strict=False):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                found.append(begin(batch))
            for tensor in batch.values():
                tensor.record_stream(stream)
        for stream in self.streams:
            here.wait_stream(stream)
        for tensor in (tensor for one in found for tensor in one):
            tensor.record_stream(here)
        return found

    def __call__(self, flat_D: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and gradient. Nothing waits for the device but what follows on the caller's stream."""
        here = torch.cuda.current_stream(flat_D.device)
        mine = next((one for one in self._recordings if one.stream == here), self._recordings[0])
        return mine(flat_D, batch)


def record(
    compute: Compute, flat_D: Tensor, batches: Sequence[Batch], *, side_by_side: bool = True
) -> GradientGraph | str:
    """Record a gradient, and compare it with the plain one on these batches; the reason where the loss cannot be recorded.

    A loss that looks at numbers on the host, for instance, has to be computed as it stands.
    """
    plain, reason = [compute(flat_D, batch)[1] for batch in batches], ""
    for _ in range(_TRIES):
        try:
            graph = GradientGraph(compute, flat_D, batches[0], _RECORDINGS if side_by_side else 1)
            same = all(_same(graph, stream, flat_D, batches, plain) for stream in graph.streams)
            return graph if same else "the recording gives other bits"
        except Exception as error:  # whatever a user's loss does that cannot be recorded
            torch.cuda.synchronize(flat_D.device)
            reason = str(error).strip().splitlines()[0]
    return reason


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """A recording that the garbage collector gives back while another one is made spoils that one: it is done before."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _same(
    graph: GradientGraph, stream: torch.cuda.Stream, flat_D: Tensor, batches: Sequence[Batch], plain: Sequence[Tensor]
) -> bool:
    torch.cuda.synchronize(flat_D.device)
    with torch.cuda.stream(stream):
        found = [graph(flat_D, batch)[1] for batch in batches]
    torch.cuda.synchronize(flat_D.device)
    return all(torch.equal(gradient_D, right_D) for gradient_D, right_D in zip(found, plain, strict=True))


# Gradients of micro-batches, one at a time: memory for one is enough.


def mean_of(
    compute: Callable[[Batch], tuple[dict[str, Tensor], Tensor]], batch: Batch, count: int, layout: Layout, leading: int
) -> tuple[Tensor, Tensor]:
    """Mean loss and mean flat gradient over `count` micro-batches, summed in order."""
    losses: list[Tensor] = []
    total: Tensor | None = None
    for k in range(count):
        gradients, loss = compute({name: tensor.select(leading, k) for name, tensor in batch.items()})
        flat = layout.flatten(gradients, leading)
        total = flat if total is None else total.add_(flat)
        losses.append(loss.detach())
    assert total is not None
    return torch.stack(losses).mean(dim=0), total.mul_(1 / count)


# BatchNorm's running statistics, computed anew from batches of a public seed: everyone evaluates the same function.


_SEED = derive(0, "batchnorm calibration")
_BATCHES = 32


def norms_of(module: nn.Module) -> list[_BatchNorm]:
    """Layers with running statistics."""
    return [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def calibrate(task: Task, module: nn.Module, batch_of: Callable[[Seed], Batch]) -> None:
    """Compute the statistics: the plain average over the batches."""
    norms = norms_of(module)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average over the calibration batches
        norm.train()
    with fixed_generator(), torch.no_grad(), calling("loss"):
        for k in range(_BATCHES if norms else 0):
            task.loss(module, batch_of(derive(_SEED, k)))
    module.eval()


@contextmanager
def fixed_generator() -> Iterator[None]:
    """Evaluation that draws with PyTorch's own generator gives the same each time, and changes it for nobody else."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# Widths of calls for gradients: those in which a batch has the same bits, alone or among others.


_FEW_LANES = 4  # an audit may cost as much as a fourth of all peers' gradients


@dataclass(frozen=True)
class Lanes:
    """Widths of calls that give a batch the same gradient, bit for bit."""

    alone: int = 1  # of a call for one batch
    together: tuple[int, ...] = ()  # of calls for several, ascending; none: any width will do

    def width(self, count: int) -> int:
        """Width of the call for so many batches; the rest is padding."""
        return self.alone if count == 1 else next((width for width in self.together if width >= count), count)


def padded(batches: Sequence[Batch], width: int) -> list[Batch]:
    """The batches, the last of them repeated up to a width."""
    return [*batches, *[batches[-1]] * (width - len(batches))]


def settle(gradients: Callable[[Sequence[Batch]], Tensor], batches: Sequence[Batch], *, pad: bool) -> Lanes | None:
    """Find widths of calls in which a batch has the same gradient, bit for bit; None: compute one by one.

    An auditor recomputes one gradient, the pool computes many in one call, and both must give the same bits, or an honest peer
    is banned. Kernels are chosen by shape, so the only widths that are ever used are those that are probed here, and calls for
    fewer are padded: all peers', half of them (liars are fewer, so more than half stay), and one for an auditor. That takes
    nine calls at most, however many peers there are. Where a call for one has other bits than a row of a wide one, a few
    lanes may do. On an accelerator, which calls one by one would leave idle, none may: with `pad`, an audit then takes a call
    as wide as the pool's, whose rows the probe has found to be the same wherever a batch stands.
    """
    peers, first, last = len(batches), batches[0], batches[-1]
    widest_PD = gradients(batches)
    if not torch.equal(gradients([first] * peers), widest_PD[:1].expand_as(widest_PD)):
        return None  # the place in the call matters
    half = -(-peers // 2)
    halves = (half,) if 1 < half < peers and torch.equal(gradients(batches[-half:]), widest_PD[-half:]) else ()
    for width in sorted({1, 2, max(2, peers // _FEW_LANES)}):
        if width <= peers and all(
            torch.equal(gradients([batch] * width)[0], row_D)
            for batch, row_D in ((first, widest_PD[0]), (last, widest_PD[-1]))
        ):
            return Lanes(width, (*halves, peers))
    return Lanes(peers, (*halves, peers)) if pad else None


# A module on an accelerator that a task's `evaluate` may call as if it were on the host.


class Placed:
    """A module in evaluation whose inputs are moved to its device and number format, and whose outputs come back."""

    def __init__(self, module: nn.Module, place: Callable[[Any], Any]) -> None:
        self._module, self._place_one = module, place

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(self._module, arguments, named)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if not inspect.ismethod(value):
            return value
        return lambda *arguments, **named: self._call(value, arguments, named)

    def _call(self, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
        arguments, named = tree_map_only(Tensor, self._place_one, (arguments, named))
        return tree_map_only(Tensor, Tensor.cpu, function(*arguments, **named))


# Tensors on their way to an accelerator, and from there.


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, if it is not there. A GPU is not waited for: the memory that it reads stays in its place."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class DeviceCopy:
    """Numbers on their way to the host; on the host they are there already.

    A stream of its own lets copies pass what is still computed. Pinned memory is several times as fast, and PyTorch keeps it for
    the next copy.
    """

    def __init__(self, numbers_D: Tensor) -> None:
        self._numbers_D = self._host_D = numbers_D.detach().contiguous()  # held: it is still being read
        self._arrived: torch.cuda.Event | None = None
        if not numbers_D.is_cuda:
            return
        aside = _copying(numbers_D.device)
        aside.wait_stream(torch.cuda.current_stream(numbers_D.device))
        with torch.cuda.stream(aside):
            self._host_D = torch.empty(numbers_D.shape, dtype=numbers_D.dtype, pin_memory=True)
            self._host_D.copy_(self._numbers_D, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def on_host(self) -> memoryview:
        """The bytes of the numbers, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return bytes_of(self._host_D)


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
