"""Checkpoints are data: loading one never runs code.

PyTorch's weights-only unpickler builds nothing but tensors, plain containers and what an allow-list
names. mmengine's checkpoints also hold the history of logged numbers, so exactly the types of that
history are allowed here and everything else is refused by name.
"""

import functools
import os
import pickle
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from aqf_det.compat.errors import UnsafeCheckpointError

# numpy 2 renamed the private package in which its pickle helpers live; files of both kinds exist.
_NUMPY_PACKAGES = ("numpy.core.multiarray", "numpy._core.multiarray")


def allow_log_history() -> bool:
    """Put the types of mmengine's logged history on torch's weights-only allow-list.

    Fault: ``Runner`` saves ``HistoryBuffer`` objects, which torch >= 2.6 refuses to load by default,
    so resuming or loading any training checkpoint fails.
    https://github.com/open-mmlab/mmengine/issues/1631

    Returns:
        Whether the allow-list grew.
    """
    from mmengine.logging import HistoryBuffer

    before = len(torch.serialization.get_safe_globals())
    allowed = [HistoryBuffer, (statistics_method, "builtins.getattr"), *numpy_types()]
    torch.serialization.add_safe_globals(allowed)
    return len(torch.serialization.get_safe_globals()) > before


def numpy_types() -> list[Any]:
    """What a pickled numeric array or scalar refers to: data, never code."""
    reconstruct = np.zeros(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    helpers = [(reconstruct, f"{package}._reconstruct") for package in _NUMPY_PACKAGES]
    helpers += [(scalar, f"{package}.scalar") for package in _NUMPY_PACKAGES]
    dtypes = {type(np.dtype(code)) for code in "?bhilqBHILQefdg"}
    return [np.ndarray, np.dtype, *helpers, *dtypes]


def statistics_method(owner: Any, name: str) -> Any:
    """Stands in for ``getattr`` while unpickling, and gives out one kind of attribute only.

    A ``HistoryBuffer`` pickles its four statistics (min, max, current, mean) as
    ``getattr(HistoryBuffer, name)``. The real ``getattr`` would open every attribute of every allowed
    object to the file.
    """
    from mmengine.logging import HistoryBuffer

    if owner is not HistoryBuffer or name not in ("min", "max", "current", "mean"):
        raise UnsafeCheckpointError(f"Unsupported global: GLOBAL builtins.getattr (of {name!r})")
    return getattr(HistoryBuffer, name)


def load_weights_only() -> bool:
    """Make every checkpoint loader of mmengine ask for weights-only loading explicitly.

    Fault: ``mmengine.runner.checkpoint`` calls ``torch.load`` without ``weights_only``, which an
    environment variable can turn into unrestricted unpickling, and reads URLs through
    ``torch.utils.model_zoo.load_url``, whose default is unrestricted unpickling in any case.
    https://github.com/pytorch/pytorch/blob/main/SECURITY.md#untrusted-models

    Returns:
        Whether the loaders were replaced (they are replaced once).
    """
    from mmengine.runner import checkpoint

    if isinstance(checkpoint.torch, _TorchWithSafeLoad):
        return False
    checkpoint.torch = _TorchWithSafeLoad()
    checkpoint.load_url = _safely(checkpoint.load_url)
    return True


class _TorchWithSafeLoad(types.ModuleType):
    """The torch module as ``mmengine.runner.checkpoint`` sees it: same names, safe ``load``."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.load = _safely(torch.load)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _safely(load: Callable[..., Any]) -> Callable[..., Any]:
    """``load`` with ``weights_only=True`` and an error that names what was refused."""

    @functools.wraps(load)
    def load_safely(source: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["weights_only"] = True
        try:
            return load(source, *args, **kwargs)
        except pickle.UnpicklingError as error:
            refused = _refused_objects(source, str(error))
            raise UnsafeCheckpointError(
                f"The checkpoint {_name(source)} was not loaded because it holds {refused}, and "
                "checkpoints may hold only tensors, plain containers and mmengine's log history: "
                "save it again with the weights alone, torch.save({'state_dict': model.state_dict()}, file)."
            ) from None

    return load_safely


def _name(source: Any) -> str:
    return f"'{os.fspath(source)}'" if isinstance(source, str | os.PathLike) else "(a stream)"


def _refused_objects(source: Any, message: str) -> str:
    try:
        refused = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(source))
    except (ValueError, OSError, RuntimeError, pickle.UnpicklingError, AttributeError):
        refused = []  # an old file format, a URL or a stream: torch cannot list these
    return ", ".join(refused or re.findall(r"GLOBAL (\S+)", message)) or "no readable weights"
