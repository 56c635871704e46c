"""Provides ``mmcv._ext``, the compiled part of mmcv, from Python."""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from aqf_det.compat import ops
from aqf_det.compat.errors import INSTALL_COMMAND, DetectionStackError, MissingOpError

EXTENSION = "mmcv._ext"


def provide_python_ops() -> bool:
    """Let ``import mmcv._ext`` find the Python ops where no compiled module exists.

    Fault: mmcv-lite has no compiled ops, and mmcv has no wheels for current PyTorch and does not
    build against it, so ``import mmcv.ops`` and with it ``import mmdet.models`` fail.
    https://github.com/open-mmlab/mmcv/issues/3325

    Returns:
        Whether the Python ops are provided: not where a compiled mmcv is installed.

    Raises:
        DetectionStackError: A compiled mmcv is installed but cannot be loaded.
    """
    if any(isinstance(finder, PythonOpsFinder) for finder in sys.meta_path):
        return True
    if _compiled_spec() is not None:
        _check_compiled_ops()
        return False
    sys.meta_path.append(PythonOpsFinder())
    return True


class PythonOpsFinder(MetaPathFinder):
    """Answers for ``mmcv._ext``; the last of the finders, so that a real file wins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != EXTENSION:
            return None
        return ModuleSpec(fullname, PythonOpsLoader(), origin=ops.__file__)


class PythonOpsLoader(Loader):
    """Fills the module with the Python ops; any other op is a function that raises."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Pure-Python mmcv ops provided by aqf_det.compat."
        for name in ops.__all__:
            setattr(module, name, getattr(ops, name))
        # setattr, because a module-level __getattr__ is no method of ModuleType.
        setattr(module, "__getattr__", _missing_op)  # noqa: B010


def _missing_op(name: str) -> Callable[..., Any]:
    # mmcv asserts at import that every op exists, so an op may only fail when it is called.
    if name.startswith("_"):
        raise AttributeError(f"module '{EXTENSION}' has no attribute '{name}'")

    def raise_missing_op(*args: object, **kwargs: object) -> None:
        raise MissingOpError(name)

    return raise_missing_op


def _compiled_spec() -> ModuleSpec | None:
    import mmcv

    return PathFinder.find_spec(EXTENSION, mmcv.__path__)


def _check_compiled_ops() -> None:
    import torch

    try:
        importlib.import_module(EXTENSION)
    except ImportError as error:
        raise DetectionStackError(
            f"The compiled mmcv does not load with torch {torch.__version__} ({error}): "
            f"run pip uninstall -y mmcv, then {INSTALL_COMMAND}"
        ) from error
