"""Loading a checkpoint never runs code from it, and a refusal says what was refused."""

import functools
import inspect
import os
import pickle
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from aqf_det.compat.errors import UnreadableCheckpointError, UnsafeCheckpointError
from aqf_det.compat.rebind import rebind

_UNPICKLING_FAILED = (pickle.UnpicklingError, EOFError, IndexError, KeyError, RuntimeError)
_DAMAGED = re.compile(r"corrupt|PytorchStreamReader|unexpected EOF")


def load_weights_only() -> bool:
    """Make every checkpoint loader of mmengine ask for weights-only loading explicitly.

    Fault: ``mmengine.runner.checkpoint`` calls ``torch.load`` without ``weights_only``, which an
    environment variable turns into unrestricted unpickling, and reads URLs by torch's ``load_url``,
    which asks for unrestricted unpickling whatever torch's default is.
    https://github.com/pytorch/vision/pull/9632

    Returns:
        Whether the loaders were replaced: once, and not where mmengine asks for it by itself.
    """
    from mmengine.runner import checkpoint

    if isinstance(checkpoint.torch, _TorchWithSafeLoad):
        return False
    if "weights_only=True" in inspect.getsource(checkpoint):
        return False
    checkpoint.torch = _TorchWithSafeLoad()
    rebind("mmengine", checkpoint.load_url, weights_only(checkpoint.load_url))
    return True


def weights_only(load: Callable[..., Any]) -> Callable[..., Any]:
    """``load(source, ...)`` with ``weights_only=True`` and an error that names what was refused."""

    @functools.wraps(load)
    def load_weights(source: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["weights_only"] = True
        try:
            return load(source, *args, **kwargs)
        except _UNPICKLING_FAILED as error:
            refused = _refused_objects(source, str(error))
            if refused:
                raise UnsafeCheckpointError(
                    f"The checkpoint {_name(source)} was not loaded because it holds {refused}, "
                    "and a checkpoint may hold only tensors, numbers, text, plain containers and "
                    "mmengine's log: save it again with its weights alone."
                ) from None
            if isinstance(error, RuntimeError) and not _DAMAGED.search(str(error)):
                raise
            raise UnreadableCheckpointError(
                f"The checkpoint {_name(source)} is damaged or was not written by torch.save: "
                "get the file again, or name another one."
            ) from error

    return load_weights


class _TorchWithSafeLoad(types.ModuleType):
    """The torch module as ``mmengine.runner.checkpoint`` sees it: same names, safe ``load``."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.load = weights_only(torch.load)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _name(source: Any) -> str:
    return f"'{os.fspath(source)}'" if isinstance(source, str | os.PathLike) else "(a stream)"


def _refused_objects(source: Any, message: str) -> str:
    try:
        refused = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(source))
    except (ValueError, OSError, RuntimeError, AttributeError, pickle.UnpicklingError):
        refused = []  # a URL, a stream or an old file format: torch cannot list these
    return ", ".join(refused or re.findall(r"GLOBAL (\S+)", message))
