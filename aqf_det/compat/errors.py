"""Errors of the compatibility layer. Each message is one sentence saying what to do."""

import pickle

INSTALL_COMMAND = 'pip install -e ".[det]" -c constraints.txt'


class DetectionStackError(ImportError):
    """The detection stack is missing, or its versions do not fit together."""


class MissingOpError(NotImplementedError):
    """An op that exists only in a compiled mmcv was called without one.

    Args:
        op: Name of the op as mmcv asks for it, e.g. ``"carafe_forward"``.
    """

    def __init__(self, op: str) -> None:
        super().__init__(
            f"The mmcv op '{op}' exists only in a compiled mmcv: build mmcv 2.1.0 with "
            "MMCV_WITH_OPS=1, setuptools < 82 and C++20, as the README shows under 'Compiled "
            "operators', and it is used from then on."
        )
        self.op = op


class UnsafeCheckpointError(pickle.UnpicklingError):
    """A checkpoint asks for Python objects that are not on the allow-list."""


class UnreadableCheckpointError(pickle.UnpicklingError):
    """A file that should be a checkpoint is none."""
