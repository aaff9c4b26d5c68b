"""Small tensors on their way to an accelerator."""

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor on the host to a device. A GPU is not waited for: it reads memory that stays in its place until then."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
