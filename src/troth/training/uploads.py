"""Small tensors on their way to an accelerator."""

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, if it is not there. A GPU is not waited for: the memory that it reads stays in its place."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
