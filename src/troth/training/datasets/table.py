"""An array on the disk whose rows are asked for by number, on any device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.training.uploads import upload

_MOST_BYTES = 4 << 30  # a larger array stays where it is, and its rows travel


class Table:
    """Rows of an array, gathered where they are used: an accelerator keeps a copy of the whole, made when first asked for.

    The same numbers on every device, since nothing is computed.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._copies: dict[torch.device, Tensor] = {}

    def __len__(self) -> int:
        return len(self._array)

    def rows(self, indices: NDArray[np.int64], device: torch.device) -> Tensor:
        """`array[indices]` as a tensor on the device; indices of any shape."""
        if device.type == "cpu" or self._array.nbytes > _MOST_BYTES:
            return torch.from_numpy(np.asarray(self._array[indices])).to(device)
        if device not in self._copies:
            self._copies[device] = torch.from_numpy(np.array(self._array)).to(device)
        return self._copies[device][upload(torch.from_numpy(indices), device)]
