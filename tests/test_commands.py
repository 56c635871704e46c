"""What make and CI run, in a copy of the project whose interpreter only writes down its calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ["ruff check .", "ruff format --check .", "mypy", "pytest"]
# Writes its arguments down, and fails if they hold the text in FAIL. Answers yes to questions.
RECORDER = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$*" | sed 's/^-m //' >> calls
case "$*" in *"${FAIL:-nothing}"*) exit 1;; esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (".venv/bin/python", "tools/setup_env.py"):
        (tmp_path / name).write_text(RECORDER)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python").write_text(f"""#!/bin/sh
case "$1" in -c) exec {sys.executable} "$@";; *) exec "$@" the environment;; esac
""")
    (tmp_path / "python").chmod(0o755)
    for name in ("benchmark_one.py", "benchmark_two.py", "demo.py"):
        (tmp_path / "tools" / name).touch()
    return tmp_path


def make(project: Path, *arguments: str, fail: str = "nothing") -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "-C", str(project), "PYTHON=./python", *arguments],
        env={**inherited, "FAIL": fail},
        capture_output=True,
        text=True,
    )


def calls(project: Path) -> list[str]:
    """What was run, in order; of pytest's options only the name."""
    lines = (project / "calls").read_text().splitlines()
    return ["pytest" if line.startswith("pytest") else line for line in lines]


def test_make_alone_lists_every_command(project: Path) -> None:
    listed = make(project).stdout
    assert listed == make(project, "help").stdout
    names = [line.split()[1] for line in listed.splitlines() if line.startswith("  make ")]
    assert sorted(names) == ["bench", "demo", "help", "lint", "setup", "test"]
    assert not (project / "calls").exists()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("setup", []),
        ("demo", ["tools/demo.py"]),
        ("test", CHECKS),
        ("lint", CHECKS[:2]),
        ("bench", ["tools/benchmark_one.py", "tools/benchmark_two.py"]),
    ],
)
def test_a_command_sets_up_once_and_does_its_job(
    command: str, expected: list[str], project: Path
) -> None:
    assert make(project, command).returncode == 0
    assert calls(project) == ["the environment", *expected]


def test_coverage_is_measured(project: Path) -> None:
    make(project, "test")
    assert "--cov --cov-report=term" in (project / "calls").read_text()


@pytest.mark.parametrize("check", CHECKS)
def test_one_failed_check_fails_the_whole_and_stops_no_other(check: str, project: Path) -> None:
    done = make(project, "test", fail=check)
    assert done.returncode != 0
    assert calls(project) == ["the environment", *CHECKS]
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("Failed:")]
    assert len(failed.split()) == 2


def test_one_failed_benchmark_fails_the_whole_and_stops_no_other(project: Path) -> None:
    assert make(project, "bench", fail="benchmark_one").returncode != 0
    assert len(calls(project)) == 3


@pytest.mark.parametrize("command", ["demo", "test", "lint", "bench"])
def test_nothing_runs_without_the_environment(command: str, project: Path) -> None:
    assert make(project, command, fail="the environment").returncode != 0
    assert calls(project) == ["the environment"]


@pytest.mark.parametrize(
    ("recipe", "passes"), [("true", True), ("false", False), ("touch left-over", False)]
)
def test_ci_passes_only_if_the_checks_pass_and_leave_nothing(
    recipe: str, passes: bool, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(f"test:\n\t{recipe}\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    done = subprocess.run([tmp_path / ".ci/run"], capture_output=True, text=True)
    assert (done.returncode == 0) is passes
    assert ("left-over" in done.stderr) is (recipe == "touch left-over")


def test_the_workflow_calls_the_same_script() -> None:
    assert "run: bash .ci/run\n" in (ROOT / ".github/workflows/ci.yml").read_text()
