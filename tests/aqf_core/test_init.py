"""What `import aqf_core` promises."""

from __future__ import annotations

import importlib.resources
import inspect
import re
import subprocess
import sys

import aqf_core

FOREIGN = (
    "aqf_det",
    "matplotlib",
    "mmdet",
    "mmengine",
    "pandas",
    "scipy",
    "sklearn",
    "torchvision",
)


def test_import_needs_torch_and_numpy_only() -> None:
    code = f"import sys, aqf_core; print([name for name in {FOREIGN} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root()
    )
    assert result.stdout.strip() == "[]"


def test_import_works_without_the_optional_packages() -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({FOREIGN}))"
    code = f"{block}; import aqf_core as a; print(a.AutoregressiveQuantileFlow(2).sample(3).shape)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root()
    )
    assert "torch.Size([3, 2])" in result.stdout


def root() -> str:
    return str(importlib.resources.files("aqf_core").joinpath(".."))


def test_public_names_exist() -> None:
    assert len(set(aqf_core.__all__)) == len(aqf_core.__all__)
    for name in aqf_core.__all__:
        assert hasattr(aqf_core, name), name
    for name in ("AutoregressiveQuantileFlow", "QuantileFunction", "make_conditioner"):
        assert name in aqf_core.__all__


def public_objects() -> dict[str, object]:
    modules = (aqf_core, aqf_core.losses, aqf_core.metrics, aqf_core.plots)
    modules += (aqf_core.levels, aqf_core.recalibration)
    return {f"{m.__name__}.{name}": getattr(m, name) for m in modules for name in m.__all__}


def test_everything_public_has_an_example_that_runs() -> None:
    """Doctests run with the tests. Errors and tables need none, estimators share theirs."""
    silent = []
    for name, thing in public_objects().items():
        if not (inspect.isfunction(thing) or inspect.isclass(thing)):
            continue
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue
        if thing.__module__.startswith("aqf_core.estimators"):
            continue
        if ">>> " not in (thing.__doc__ or ""):
            silent.append(name)
    assert silent == []


def test_types_are_shipped() -> None:
    assert importlib.resources.files("aqf_core").joinpath("py.typed").is_file()


def test_version_is_a_release_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", aqf_core.__version__)
