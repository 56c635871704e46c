"""The distribution: what it needs, how fast it imports, that its files agree with each other."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import aqf_core

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]


def clean_run(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where nothing but torch and numpy seems to be installed."""
    tops = set()
    for name in installed_closure("torch") | {"torch", "numpy"}:
        files = importlib.metadata.files(name) or []
        tops |= {file.parts[0].partition(".")[0] for file in files if file.suffix in {".py", ".so"}}
    script = ROOT / "tests/clean_interpreter.py"
    return subprocess.run(
        [sys.executable, "-I", str(script), str(ROOT), ",".join(tops), code],
        capture_output=True,
        text=True,
    )


def pyproject() -> dict[str, Any]:
    """The parsed project file."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    parsed: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return parsed


def constraints() -> list[Requirement]:
    """The pinned requirements."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    stripped = [line.split(" #")[0].strip() for line in lines]
    return [Requirement(line) for line in stripped if line and not line.startswith("#")]


def pins_for(python: str) -> dict[str, str]:
    """Name -> pinned version on a given Python."""
    environment = {"python_version": python}
    chosen = [r for r in constraints() if r.marker is None or r.marker.evaluate(environment)]
    names = [canonicalize_name(r.name) for r in chosen]
    assert len(names) == len(set(names)), f"two pins for one package on Python {python}"
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in chosen}


def test_core_imports_quickly_with_only_torch_and_numpy() -> None:
    seconds = []
    for _ in range(3):
        done = clean_run("import aqf_core")
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
        if seconds[-1] < 0.3:
            break
    assert min(seconds) < 0.3


def test_core_works_with_only_torch_and_numpy() -> None:
    done = clean_run("""
import torch, aqf_core
x, context = torch.randn(8, 2), torch.randn(8, 3)
flow = aqf_core.AutoregressiveQuantileFlow(features=2, context=3).fit_scaling(x, context)
flow.loss(x, context).backward()
flow.log_prob(x, context), flow.sample(5, context), flow(context).interval(0.9)
""")
    assert done.returncode == 0, done.stderr


def test_the_clean_interpreter_does_refuse() -> None:
    attempts = """
for importer, name in [("x", "pandas"), ("x", "mmengine"), ("aqf_core.x", "typing_extensions")]:
    try:
        exec(f"import {name}", {"__name__": importer})
    except ModuleNotFoundError as error:
        print(error)
import typing_extensions, sympy, numpy
"""
    done = clean_run(attempts)
    assert done.returncode == 0, done.stderr
    refused = ["pandas", "mmengine", "typing_extensions for aqf_core.x"]
    assert done.stdout.splitlines()[:-1] == [f"refused: {what}" for what in refused]


def test_versions_agree() -> None:
    version = importlib.metadata.version("aqf")
    assert aqf_core.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    in_detection = re.search(
        r'^__version__ = "(.+)"', (ROOT / "aqf_det/__init__.py").read_text(), re.M
    )
    assert in_detection is None or in_detection[1] == version


def test_core_needs_torch_and_numpy_only() -> None:
    project = pyproject()["project"]
    assert {Requirement(r).name for r in project["dependencies"]} == {"torch", "numpy"}
    assert set(project["optional-dependencies"]) == {"det", "experiments", "dev"}
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path: Path) -> None:
    packages = ["aqf_core", "aqf_det"]
    for name in [*packages, "tests", "tools", "configs"]:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("aqf-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    expected = {
        path.relative_to(tmp_path).as_posix()
        for package in packages
        for path in (tmp_path / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert held == expected


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_pinned_within_its_bounds(python: str) -> None:
    project = pyproject()["project"]
    assert python in SpecifierSet(project["requires-python"])
    wanted = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    pins = pins_for(python)
    for requirement in map(Requirement, wanted):
        pinned = pins[canonicalize_name(requirement.name)]
        assert pinned in requirement.specifier, f"{requirement} against {pinned}"


def test_unsupported_pythons_are_excluded_everywhere() -> None:
    project = pyproject()["project"]
    supported = SpecifierSet(project["requires-python"])
    assert "3.9" not in supported and "3.14" not in supported
    assert pyproject()["tool"]["mypy"]["python_version"] == PYTHONS[0]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    matrix = re.search(r"python-version: \[(.*)\]", workflow)
    assert matrix is not None
    assert classifiers == re.findall(r"3\.\d+", matrix[1]) == PYTHONS


def installed_closure(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Installed distributions that ``name[extras]`` needs, directly or not, itself excluded."""
    seen: dict[str, frozenset[str]] = {}
    todo = [(name, extras)]
    while todo:
        current, wanted = todo.pop()
        if seen.get(current, frozenset()) >= wanted and current in seen:
            continue
        seen[current] = wanted | seen.get(current, frozenset())
        for line in importlib.metadata.requires(current) or []:
            needed = Requirement(line)
            environments = [{"extra": extra} for extra in wanted or {""}]
            if needed.marker is None or any(map(needed.marker.evaluate, environments)):
                todo.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    return set(seen) - {name}


def test_everything_the_project_installs_is_pinned() -> None:
    pins = pins_for(f"{sys.version_info[0]}.{sys.version_info[1]}")
    unpinned, different = [], []
    for name in installed_closure("aqf", frozenset({"det", "experiments", "dev"})):
        if name.startswith("nvidia-") or name in {"triton", "cuda-toolkit"}:
            continue  # torch pins these exactly
        installed = importlib.metadata.version(name).split("+")[0]  # without torch's "+cpu"
        if name not in pins:
            unpinned.append(name)
        elif pins[name] != installed:
            different.append(f"{name} {installed} instead of {pins[name]}")
    assert not unpinned
    assert not different


def test_hooks_run_the_pinned_linter() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert f"rev: v{pins_for('3.11')['ruff']}\n" in hooks
