"""One gradient as a CUDA graph: its kernels are recorded once and launched together, with the same bits, several times as fast.

A small batch keeps a GPU busy for less time than Python takes to launch its kernels one by one.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from troth.training.task import Batch

# D coordinates

Compute = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]  # parameters, batch -> loss, gradient
_WARM_UPS = 3  # calls before the recording, in which libraries choose kernels and allocate


class GradientGraph:
    """A recorded gradient. Batches must have the shapes of the one that it was recorded with."""

    def __init__(self, compute: Compute, flat_D: Tensor, batch: Batch) -> None:
        self._flat_D = flat_D.clone()
        self._batch = {name: tensor.clone() for name, tensor in batch.items()}
        aside = torch.cuda.Stream(flat_D.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(flat_D.device))
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                compute(self._flat_D, self._batch)
        torch.cuda.current_stream(flat_D.device).wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss, self._gradient_D = compute(self._flat_D, self._batch)

    def __call__(self, flat_D: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and gradient. Nothing waits for the device."""
        self._flat_D.copy_(flat_D)
        for name, tensor in batch.items():
            self._batch[name].copy_(tensor)
        self._graph.replay()
        return self._loss.clone(), self._gradient_D.clone()


def record(compute: Compute, flat_D: Tensor, batches: Sequence[Batch]) -> GradientGraph | str:
    """Record a gradient, and compare it with the plain one on these batches; the reason where the loss cannot be recorded.

    A loss that looks at numbers on the host, for instance, has to be computed as it stands.
    """
    plain = [compute(flat_D, batch)[1] for batch in batches]
    try:
        graph = GradientGraph(compute, flat_D, batches[0])
        same = all(
            torch.equal(graph(flat_D, batch)[1], gradient_D) for batch, gradient_D in zip(batches, plain, strict=True)
        )
    except Exception as error:  # whatever a user's loss does that cannot be recorded
        torch.cuda.synchronize(flat_D.device)
        return str(error).strip().splitlines()[0]
    return graph if same else "the recording gives other bits"
