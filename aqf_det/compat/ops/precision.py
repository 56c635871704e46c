"""Half precision is stored, never computed in."""

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """float32 for half-precision and integer tensors, the tensor's own type otherwise."""
    return tensor.dtype if tensor.dtype in (torch.float32, torch.float64) else torch.float32
