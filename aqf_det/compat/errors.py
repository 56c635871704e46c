"""Errors of the compatibility layer. Each message is one sentence saying what to do."""

import pickle

INSTALL_COMMAND = 'pip install -e ".[det]" -c constraints.txt'


class DetectionStackError(ImportError):
    """The detection stack is missing, or its versions do not fit together."""


class MissingOpError(NotImplementedError):
    """An mmcv op that exists only in a compiled mmcv was called without one.

    Args:
        op: Name of the op as mmcv asks for it, e.g. ``"carafe_forward"``.
    """

    def __init__(self, op: str) -> None:
        super().__init__(
            f"The mmcv op '{op}' has no pure-Python version here; to use it, build mmcv from source "
            "against the installed PyTorch (pip install --no-binary mmcv mmcv==2.1.0), "
            "which then replaces the Python ops by itself."
        )
        self.op = op


class UnsafeCheckpointError(pickle.UnpicklingError):
    """A checkpoint asks for Python objects that are not on the allow-list."""
