"""What a checkpoint may hold besides tensors and plain containers."""

from typing import Any

import numpy as np
import torch

from aqf_det.compat.errors import UnsafeCheckpointError

# numpy 2 renamed the private package in which its pickle helpers live; files of both kinds exist.
_NUMPY_PACKAGES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMBER_CODES = "?bhilqBHILQefdg"


def allow_runner_state() -> bool:
    """Put the types that mmengine's ``Runner`` saves on torch's weights-only allow-list.

    Fault: ``Runner`` saves its log as ``HistoryBuffer`` objects and nested dataset information as
    ``ConfigDict``, which torch >= 2.6 does not load by default, so resuming from or loading any
    training checkpoint fails.
    https://github.com/open-mmlab/mmengine/issues/1655

    Returns:
        Whether the allow-list grew.
    """
    from mmengine.config import ConfigDict
    from mmengine.logging import HistoryBuffer

    before = set(torch.serialization.get_safe_globals())
    torch.serialization.add_safe_globals(
        [HistoryBuffer, (statistics_method, "builtins.getattr"), ConfigDict, *numpy_types()]
    )
    return set(torch.serialization.get_safe_globals()) != before


def numpy_types() -> list[Any]:
    """What a pickled array or scalar of numbers refers to: data, never code."""
    reconstruct = np.zeros(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    helpers = [(reconstruct, f"{package}._reconstruct") for package in _NUMPY_PACKAGES]
    helpers += [(scalar, f"{package}.scalar") for package in _NUMPY_PACKAGES]
    dtypes = {type(np.dtype(code)) for code in _NUMBER_CODES}
    return [np.ndarray, np.dtype, *helpers, *dtypes]


def statistics_method(owner: Any, name: str) -> Any:
    """Stands in for ``getattr`` while unpickling, and gives out one kind of attribute only.

    A ``HistoryBuffer`` pickles its statistics as ``getattr(HistoryBuffer, name)``. The real
    ``getattr`` would open every attribute of every allowed object to the file.

    Args:
        owner: Must be ``HistoryBuffer``.
        name: Must be one of its statistics: min, max, current, mean.
    """
    from mmengine.logging import HistoryBuffer

    if owner is not HistoryBuffer or name not in ("min", "max", "current", "mean"):
        raise UnsafeCheckpointError(f"Unsupported global: GLOBAL builtins.getattr of {name!r}")
    return getattr(HistoryBuffer, name)
