"""Runs code in an interpreter that behaves as if only torch and numpy were installed.

    python -I clean_interpreter.py ROOT TORCH_NEEDS CODE

Modules of aqf_core may ask for the standard library, torch and numpy; the rest of the process for
these and for the comma-separated packages that torch itself needs. Prints the processor seconds
CODE took, which unlike the time on the clock do not depend on what else the machine is doing.
"""

from __future__ import annotations

import builtins
import importlib.abc
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

CORE_MAY_IMPORT = set(sys.stdlib_module_names) | {"torch", "numpy", "aqf_core"}


class Refuse(importlib.abc.MetaPathFinder):
    """Finds nothing, and ends the search for every module outside ``allowed``."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] not in self.allowed:
            raise ModuleNotFoundError(f"refused: {name}")


def guard_core() -> None:
    """Refuse aqf_core also those packages that torch has already imported for itself."""
    plain_import = builtins.__import__

    def guarded(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        importer = str((globals or {}).get("__name__", ""))
        if importer.split(".")[0] == "aqf_core" and level == 0:
            if name.split(".")[0] not in CORE_MAY_IMPORT:
                raise ModuleNotFoundError(f"refused: {name} for {importer}")
        return plain_import(name, globals, locals, fromlist or (), level)

    builtins.__import__ = guarded


def main(root: str, torch_needs: str, code: str) -> None:
    """Run ``code`` under both guards."""
    sys.path.insert(0, root)
    sys.meta_path.insert(0, Refuse(CORE_MAY_IMPORT | set(torch_needs.split(","))))
    guard_core()
    import torch  # noqa: F401

    start = time.process_time()
    exec(code, {"__name__": "__main__"})
    print(time.process_time() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
