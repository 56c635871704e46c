"""Replacing a function that other modules imported by name."""

import sys
from collections.abc import Callable
from typing import Any


def rebind(package: str, original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Put ``replacement`` wherever a loaded module of ``package`` holds ``original``."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)
