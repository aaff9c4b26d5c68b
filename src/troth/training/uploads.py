"""Tensors on their way to an accelerator, and from there."""

from functools import cache

import torch
from torch import Tensor

from troth.protocol.wire.blob import bytes_of


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, if it is not there. A GPU is not waited for: the memory that it reads stays in its place."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Download:
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
