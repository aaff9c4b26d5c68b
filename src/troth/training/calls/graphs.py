"""One gradient as a CUDA graph: its kernels are recorded once and launched together, with the same bits, several times as fast.

A small batch keeps a GPU busy for less time than Python takes to launch its kernels one by one. Nor does it keep all of the GPU
busy: so there are several recordings, each with memory and a stream of its own, which run side by side.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

import torch
from torch import Tensor

from troth.training.task import Batch

# D coordinates

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
