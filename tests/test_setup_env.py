"""The set-up script: nothing is installed twice, half-made environments are repaired, and whatever
stands in the way is said in one sentence. No test downloads or installs a package."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools/setup_env.py"
OFFLINE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "1",
}


def load_script() -> types.ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup_env = load_script()


def run(venv: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the script as make does, with a package index that nobody answers."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--venv", str(venv)],
        env={**clean, **OFFLINE, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )


def only_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a set-up that had to stop."""
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("Set-up stopped: ") and line.endswith(".")
    return line


@pytest.fixture
def bare_venv(tmp_path: Path) -> Path:
    """An environment without pip: it could not install anything if it were asked to."""
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    return venv


def write_stamp(venv: Path) -> None:
    version = setup_env.python_version(venv)
    (venv / setup_env.STAMP).write_text(setup_env.fingerprint(version))


def test_a_complete_environment_is_left_alone(bare_venv: Path) -> None:
    write_stamp(bare_venv)
    before = {path: path.stat().st_mtime_ns for path in bare_venv.rglob("*")}
    done = run(bare_venv)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path: path.stat().st_mtime_ns for path in bare_venv.rglob("*")} == before


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_the_fingerprint_follows_the_files_and_the_python(tmp_path: Path, name: str) -> None:
    for file in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / file, tmp_path)
    before = setup_env.fingerprint("3.11.7", tmp_path)
    assert setup_env.fingerprint("3.11.7", tmp_path) == before
    assert setup_env.fingerprint("3.12.1", tmp_path) != before
    with open(tmp_path / name, "a") as stream:
        stream.write("# changed\n")
    assert setup_env.fingerprint("3.11.7", tmp_path) != before


def test_an_old_stamp_does_not_count(bare_venv: Path) -> None:
    (bare_venv / setup_env.STAMP).write_text("0" * 64)
    assert not setup_env.is_complete(bare_venv)


def test_a_half_made_environment_is_made_again_and_no_network_is_said(bare_venv: Path) -> None:
    """One real run: .venv lost its interpreter, and the real pip of the new one finds no index."""
    python = setup_env.venv_python(bare_venv)
    python.unlink()
    python.symlink_to("/nowhere/python")
    write_to = bare_venv / "left over from the last attempt"
    write_to.touch()

    done = run(bare_venv)

    assert "no network: pip cannot reach the package index" in only_sentence(done)
    assert "its Python does not run" in done.stdout
    assert not write_to.exists()
    assert setup_env.probe(bare_venv, "import pip; print(1)") == "1"
    assert not setup_env.is_complete(bare_venv)
    # Nothing had been installed yet, so the next run need not start over.
    assert setup_env.fault(bare_venv) is None


def test_faults_are_named(bare_venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup_env.fault(bare_venv) == "it has no pip"
    monkeypatch.setattr(setup_env, "python_version", lambda venv: "3.9.18")
    assert setup_env.fault(bare_venv) == "its Python 3.9.18 is not supported"
    (bare_venv / setup_env.UNFINISHED).touch()
    assert setup_env.fault(bare_venv) == "an earlier installation was interrupted"


def fake_pip(venv: Path, output: str, status: int) -> None:
    """Make ``python -m pip`` in the environment print ``output`` and end with ``status``."""
    site = venv / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/pip"
    site.mkdir()
    (site / "__init__.py").touch()
    (site / "__main__.py").write_text(f"print({output!r})\nraise SystemExit({status})\n")


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("WARNING: Retrying ... NewConnectionError\nERROR: No matching", "no network"),
        ("ERROR: No matching distribution found for torch==2.14.1", "no torch==2.14.1 for this"),
        ("ERROR: ResolutionImpossible: for help", "constraints.txt contradict pyproject.toml"),
        ("ERROR: the moon is full\n", "pip failed (the moon is full); its whole output is in"),
        ("", "pip failed (no reason was given)"),
    ],
)
def test_failures_of_pip_are_explained(bare_venv: Path, output: str, sentence: str) -> None:
    fake_pip(bare_venv, output, 1)
    assert sentence in only_sentence(run(bare_venv))
    assert not (bare_venv / setup_env.STAMP).exists()


def test_a_failure_in_the_middle_of_installing_marks_the_environment(bare_venv: Path) -> None:
    fake_pip(bare_venv, "Installing collected packages: torch\nERROR: torn off", 1)
    only_sentence(run(bare_venv))
    assert setup_env.fault(bare_venv) == "an earlier installation was interrupted"


def test_success_is_stamped_and_not_repeated(
    bare_venv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_pip(bare_venv, "Successfully installed everything", 0)
    monkeypatch.setattr(setup_env, "check_opencv", lambda venv, started: None)
    setup_env.set_up(bare_venv)
    assert "is ready after" in capsys.readouterr().out
    assert setup_env.is_complete(bare_venv)
    setup_env.set_up(bare_venv)
    assert capsys.readouterr().out == ""


def test_opencv_that_does_not_load_is_replaced_by_its_headless_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, ""])
    installed: list[list[str]] = []
    monkeypatch.setattr(setup_env, "probe", lambda venv, code: next(answers))
    monkeypatch.setattr(
        setup_env, "pip_install", lambda venv, arguments, started: installed.append(arguments)
    )
    setup_env.check_opencv(tmp_path, 0.0)
    (arguments,) = installed
    assert arguments[:2] == ["-c", "constraints.txt"]
    assert arguments[-1] == "opencv-python-headless"


@pytest.mark.parametrize("version", [(3, 6, 15), (3, 9, 18), (3, 14, 0)])
def test_an_unsupported_python_is_refused_before_anything_is_made(
    version: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setenv("PYTHON", "python3")
    with pytest.raises(SystemExit) as stopped:
        setup_env.main(["--venv", str(tmp_path / ".venv")])
    assert stopped.value.code == 1
    text = ".".join(map(str, version))
    assert f"needs Python 3.10 to 3.13, but python3 is Python {text};" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_python_that_is_advised_does_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version managers put commands on the path that only say that the version is not chosen."""
    for name, line in (("python3.13", "exit 127"), ("python3.12", f'exec {sys.executable} "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup_env.SetupError, match=r"with PYTHON=python3\.12$"):
        setup_env.check_python((3, 9, 18), "python3")


def test_a_python_without_venv_or_pip_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = tmp_path / "python"
    lacking.write_text("#!/bin/sh\necho 'No module named venv'\nexit 1\n")
    lacking.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(lacking))
    with pytest.raises(setup_env.SetupError, match="apt install python3-venv"):
        setup_env.create(tmp_path / ".venv")


def test_something_else_called_venv_is_not_overwritten(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    venv.write_text("mine")
    assert "is not a folder" in only_sentence(run(venv))
    assert venv.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file/.venv" in only_sentence(run(tmp_path / "file" / ".venv"))


def test_what_is_no_python_3_is_named_by_make(tmp_path: Path) -> None:
    """A missing command, one that does not run, and Python 2, to which the script is no Python."""
    (tmp_path / "python2").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python2").chmod(0o755)
    for name in ("python9.9", str(tmp_path / "python2")):
        command = ["make", "-C", str(ROOT), "setup", f"PYTHON={name}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode != 0
        sentence = f"Set-up stopped: {name} does not run or is no Python 3; install Python 3.10"
        assert sentence in done.stderr


def test_the_script_is_readable_for_old_pythons() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
    assert "from __future__" not in SCRIPT.read_text()
