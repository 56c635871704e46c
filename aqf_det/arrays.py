"""Getting numbers out of whatever mmdet hands over."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_numpy(values: Any) -> NDArray:
    """Tensors and mmdet box objects as arrays on the CPU."""
    tensor = getattr(values, "tensor", values)
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
