"""Provides ``mmcv._ext``, the compiled part of mmcv, from Python."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

from aqf_det.compat import ops
from aqf_det.compat.errors import MissingOpError

EXTENSION = "mmcv._ext"


def provide_python_ops() -> bool:
    """Let ``import mmcv._ext`` find the Python ops where no compiled module exists.

    Fault: mmcv-lite has no compiled ops, and mmcv neither builds against nor ships wheels for
    current PyTorch, so ``import mmcv.ops`` and with it ``import mmdet.models`` fail.
    https://github.com/open-mmlab/mmcv/issues/3325

    The finder goes to the end of ``sys.meta_path``: a compiled module is always found before it.

    Returns:
        Whether the finder was added (it is added once).
    """
    if any(isinstance(finder, PythonOpsFinder) for finder in sys.meta_path):
        return False
    sys.meta_path.append(PythonOpsFinder())
    return True


class PythonOpsFinder(MetaPathFinder):
    """Answers for ``mmcv._ext`` when nobody before it did."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != EXTENSION:
            return None
        return importlib.machinery.ModuleSpec(fullname, PythonOpsLoader(), origin=ops.__file__)


class PythonOpsLoader(Loader):
    """Fills the module with the Python ops; any other op is a function that raises."""

    def exec_module(self, module: ModuleType) -> None:
        for name in ops.__all__:
            setattr(module, name, getattr(ops, name))
        module.__doc__ = "Pure-Python mmcv ops provided by aqf_det.compat."
        module.__getattr__ = _missing_op  # type: ignore[method-assign]


def _missing_op(name: str) -> Callable[..., Any]:
    # mmcv asserts at import that every op exists, so an op may only fail when it is called.
    if name.startswith("__"):
        raise AttributeError(f"module '{EXTENSION}' has no attribute '{name}'")

    def raise_missing_op(*args: object, **kwargs: object) -> None:
        raise MissingOpError(name)

    return raise_missing_op
