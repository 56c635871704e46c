"""What `import aqf_core` promises."""

from __future__ import annotations

import importlib.resources
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


def test_types_are_shipped() -> None:
    assert importlib.resources.files("aqf_core").joinpath("py.typed").is_file()


def test_version_is_a_release_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", aqf_core.__version__)
