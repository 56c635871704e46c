"""Metrics take NumPy arrays or torch tensors and answer in kind; the arithmetic is torch's."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ShapeError
from ..validation import check_finite, paired_shape

__all__ = ["Array", "ArrayLike", "in_kind", "to_paired", "to_tensors"]

Array = TypeVar("Array", NDArray[Any], Tensor)
ArrayLike = Any
"""Whatever `numpy.asarray` accepts, or a tensor."""


def to_tensors(**arrays: ArrayLike) -> list[Tensor]:
    """Convert named arguments to tensors of one floating dtype and device.

    Raises:
        ShapeError: an array is empty.
        NonFiniteError: an array contains NaN or infinity.
    """
    given = [a for a in arrays.values() if isinstance(a, Tensor)]
    tensors = [a if isinstance(a, Tensor) else _from_numpy(a) for a in arrays.values()]
    floating = [t.dtype for t in (given or tensors) if t.dtype.is_floating_point]
    dtype = max(floating, key=lambda d: torch.finfo(d).bits, default=torch.float64)
    if dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    device = given[0].device if given else torch.device("cpu")
    converted = [t.to(dtype=dtype, device=device) for t in tensors]
    for name, tensor in zip(arrays, converted, strict=True):
        if tensor.numel() == 0:
            raise ShapeError(f"{name} is empty; a metric needs at least one observation.")
        check_finite(tensor, name)
    return converted


def to_paired(**arrays: ArrayLike) -> list[Tensor]:
    """`to_tensors` for arguments that belong together element by element.

    Raises:
        ShapeError: they do not broadcast, or only by pairing each with each.
    """
    tensors = to_tensors(**arrays)
    paired_shape(**{name: t.shape for name, t in zip(arrays, tensors, strict=True)})
    return tensors


def _from_numpy(array: ArrayLike) -> Tensor:
    array = np.asarray(array)
    # torch shares memory and therefore accepts neither read-only nor reversed views.
    if not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.as_tensor(array)


def in_kind(result: Tensor, *like: Array) -> Array:
    """Turn a result into what the caller used: a tensor if any of `like` is one, else NumPy."""
    answer: Any = result
    if not any(isinstance(a, Tensor) for a in like):
        answer = result.detach().numpy()[()]
    return cast(Array, answer)
