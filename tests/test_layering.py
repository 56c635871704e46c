"""Imports go one way only: tools -> aqf_det -> aqf_core, read from the source of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DETECTION_STACK = {"aqf_det", "mmcv", "mmdet", "mmengine", "torchvision", "pycocotools", "cv2"}
NOT_LIBRARY = {"tools", "tests", "configs"}
FORBIDDEN = {"aqf_core": DETECTION_STACK | NOT_LIBRARY, "aqf_det": NOT_LIBRARY}


def imported_packages(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, top-level package) of every import in ``source``, at any depth.

    Relative imports belong to ``package``; ``import_module("x")`` and ``__import__("x")`` count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, package if node.level else (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            name = called.id if isinstance(called, ast.Name) else called
            first = node.args[0]
            if name in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value).split(".")[0] or package


def violations(source: str, package: str) -> list[str]:
    """Imports in ``source`` that ``package`` must not have, as "line N: name"."""
    found = imported_packages(source, package)
    return [f"line {line}: {name}" for line, name in found if name in FORBIDDEN[package]]


def modules(folder: str) -> list[Path]:
    """Python files below ``folder``, relative to the repository."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_packages_import_downwards_only(package: str) -> None:
    files = modules(package)
    assert files, f"no modules found in {package}"
    broken = {
        str(path): bad for path in files if (bad := violations((ROOT / path).read_text(), package))
    }
    assert not broken


@pytest.mark.parametrize(
    "source",
    [
        "import aqf_det",
        "from aqf_det.models import BoxFlow",
        "def f():\n    import mmdet.structures as s",
        "class A:\n    def f(self):\n        from mmengine import Config",
        "if True:\n    import importlib\n    importlib.import_module('aqf_det.compat')",
        "from importlib import import_module\nimport_module('mmcv')",
        "__import__('torchvision')",
        "from tools.demo import main",
    ],
)
def test_the_check_sees_every_kind_of_import(source: str) -> None:
    assert len(violations(source, "aqf_core")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import torch, numpy",
        "from . import losses",
        "from ..transformers import spline",
        "def f():\n    import matplotlib.pyplot as plt",
        "text = 'import aqf_det'",
        "print('aqf_det')",
    ],
)
def test_the_check_accepts_what_is_allowed(source: str) -> None:
    assert violations(source, "aqf_core") == []
