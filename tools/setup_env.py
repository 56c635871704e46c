"""Create the project's virtual environment and install the tested versions into it.

``make demo`` and ``make test`` call this first. It uses the standard library only and keeps to
Python 3.6 until it knows better, so that an interpreter that is too old still gets to say so.

The environment is complete when ``.venv/aqf-setup.txt`` holds the fingerprint of
``pyproject.toml``, ``constraints.txt`` and the environment's own Python; then nothing is installed
and no network is needed. An environment that was left half-made is made again.
"""

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

try:
    import fcntl
except ImportError:
    HAS_LOCKS = False  # Windows: two set-ups at once are not guarded against
else:
    HAS_LOCKS = True

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "det,experiments,dev"
OLDEST, NEWEST = (3, 10), (3, 13)
STAMP = "aqf-setup.txt"
UNFINISHED = "aqf-setup-unfinished"
LOG = "aqf-setup.log"
PROGRESS_SECONDS = 15.0

# What pip prints -> what the user should know. The first match wins.
PIP_FAILURES = [
    (
        r"No space left on device",
        "the disk is full: the environment needs about 7 GB (2 GB with the CPU build of torch)",
    ),
    (
        r"NewConnectionError|ConnectTimeoutError|NameResolutionError|ProxyError|ReadTimeoutError"
        r"|SSLError|Temporary failure in name resolution|Connection refused|Network is unreachable",
        "no network: pip cannot reach the package index; connect, or point PIP_INDEX_URL or "
        "PIP_FIND_LINKS to a mirror, and run the same command again",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "the package index has no {what} for this Python and platform",
    ),
    (
        r"ResolutionImpossible",
        "the versions in constraints.txt contradict pyproject.toml",
    ),
]


class SetupError(Exception):
    """A reason why the environment cannot be made, as one sentence for the user."""


def check_python(version: Tuple[int, ...], name: str) -> None:
    """Refuse interpreters the project is not made for, naming a good one if there is one."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return
    minors = range(NEWEST[1], OLDEST[1] - 1, -1)
    found = [f"python3.{minor}" for minor in minors if runs(f"python3.{minor}")]
    actual = ".".join(str(part) for part in version[:3])
    advice = found[0] if found else "/path/to/python3.11 after installing one"
    raise SetupError(
        f"AQF needs Python 3.{OLDEST[1]} to 3.{NEWEST[1]}, but {name} is Python {actual}; "
        f"run the same command with PYTHON={advice}"
    )


def runs(python: str) -> bool:
    """Whether an interpreter of that name starts; version managers also list ones that do not."""
    found = shutil.which(python)
    return found is not None and output_of(found, "print('yes')") == "yes"


def venv_python(venv: Path) -> Path:
    """Path of the interpreter inside the environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def output_of(python: str, code: str) -> Optional[str]:
    """Output of ``code`` run by an interpreter, None if that does not work."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            timeout=120,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def probe(venv: Path, code: str) -> Optional[str]:
    """Output of ``code`` run by the environment's interpreter, None if that does not work."""
    return output_of(str(venv_python(venv)), code)


def python_version(venv: Path) -> Optional[str]:
    """Version of the environment's interpreter, None if it does not run."""
    return probe(venv, "import sys; print('.'.join(map(str, sys.version_info[:3])))")


def fingerprint(version: str, root: Path = ROOT) -> str:
    """What the installed packages depend on: both files, the Python, the place of the clone."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((root / name).read_bytes() + b"\0")
    digest.update(repr((version, EXTRAS, str(root))).encode())
    return digest.hexdigest()


def is_complete(venv: Path) -> bool:
    """True if the environment holds what the project's files ask for now."""
    stamp = venv / STAMP
    version = python_version(venv) if stamp.is_file() else None
    return version is not None and stamp.read_text().strip() == fingerprint(version)


def fault(venv: Path) -> Optional[str]:
    """Why an existing environment cannot be used as it is, None if it can."""
    if (venv / UNFINISHED).exists():
        return "an earlier installation was interrupted"
    version = python_version(venv)
    if version is None:
        return "its Python does not run"
    if not OLDEST <= tuple(int(part) for part in version.split(".")[:2]) <= NEWEST:
        return f"its Python {version} is not supported"
    if probe(venv, "import pip") is None:
        return "it has no pip"
    return None


def create(venv: Path) -> None:
    """Make an empty environment at ``venv``, replacing a broken one."""
    if venv.exists() and not venv.is_dir():
        raise SetupError(f"{venv} is not a folder; remove it and run the same command again")
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    if done.returncode == 0 and probe(venv, "import pip") is not None:
        return
    if re.search(r"No module named|ensurepip", done.stdout):
        raise SetupError(
            "this Python lacks its venv or pip module; install it (Debian and Ubuntu: "
            "apt install python3-venv) or choose another interpreter with PYTHON=..."
        )
    raise SetupError(f"{venv} could not be created: {last_line(done.stdout)}")


def last_line(text: str) -> str:
    """The last line with something on it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def pip_failure(output: str, log: Path) -> str:
    """One sentence for what pip's output says went wrong."""
    for pattern, sentence in PIP_FAILURES:
        match = re.search(pattern, output)
        if match:
            return sentence.format(**match.groupdict())
    errors = re.findall(r"^ERROR: (.*)$", output, re.MULTILINE)
    reason = errors[-1].strip() if errors else last_line(output)
    return f"pip failed ({reason}); its whole output is in {log}"


def pip_progress(output: str) -> str:
    """What pip is doing, from the last line of its output that tells."""
    steps = re.findall(r"^ *((?:Collecting|Downloading|Building|Installing) .*)$", output, re.M)
    if not steps:
        return "Looking at what is installed"
    if steps[-1].startswith("Installing collected packages"):
        return f"Installing {steps[-1].count(',') + 1} packages"
    return str(steps[-1])[:80]


def pip_environment() -> Dict[str, str]:
    """The user's environment without the settings that would aim pip at another place."""
    unwanted = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def pip_install(venv: Path, arguments: Sequence[str], started: float) -> None:
    """Run pip quietly into the log, reporting from time to time what it is doing."""
    log = venv / LOG
    command = [str(venv_python(venv)), "-m", "pip", "install", "--no-input"]
    # Compiling every file of every package takes half of the time; Python compiles on first use.
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--no-compile"]
    command += list(arguments)
    with open(str(log), "w") as stream:
        process = subprocess.Popen(
            command, cwd=str(ROOT), stdout=stream, stderr=subprocess.STDOUT, env=pip_environment()
        )
        try:
            while True:
                try:
                    status = process.wait(timeout=PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    doing = pip_progress(log.read_text(errors="replace"))
                    say(f"  {time.time() - started:3.0f} s  {doing}")
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status:
        output = log.read_text(errors="replace")
        if "Installing collected packages" not in output:
            # pip resolves and downloads everything before it changes anything.
            with contextlib.suppress(OSError):
                (venv / UNFINISHED).unlink()
        raise SetupError(pip_failure(output, log))


def install(venv: Path, started: float) -> None:
    """Install the project, editable, with all extras at the versions of ``constraints.txt``."""
    constrained = ["-c", "constraints.txt"]
    # Building with the pinned setuptools instead of a freshly downloaded one keeps a repeated
    # installation independent of the network.
    pip_install(venv, constrained + ["setuptools"], started)
    project = ["--no-build-isolation", "-e", f".[{EXTRAS}]"]
    pip_install(venv, constrained + project, started)


def check_opencv(venv: Path, started: float) -> None:
    """Swap OpenCV for its window-less build on machines without the libraries of a desktop.

    mmengine asks for ``opencv-python``, which does not load where libGL is missing. The headless
    build of the same version has the same contents but for the windows.
    """
    if probe(venv, "import cv2") is not None:
        return
    say("OpenCV does not load here (no desktop libraries): taking its headless build")
    swap = ["--force-reinstall", "--no-deps", "opencv-python-headless"]
    pip_install(venv, ["-c", "constraints.txt"] + swap, started)
    if probe(venv, "import cv2") is None:
        raise SetupError("OpenCV does not load; `.venv/bin/python -c 'import cv2'` shows why")


@contextlib.contextmanager
def only_one(venv: Path) -> Iterator[None]:
    """Let a second set-up of the same environment wait for the first one."""
    if not HAS_LOCKS:
        yield
        return
    with open(str(venv) + ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"Another set-up of {venv.name} is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up(venv: Path) -> None:
    """Bring the environment at ``venv`` to the state the project's files ask for."""
    if is_complete(venv):
        return
    check_python(sys.version_info[:3], os.environ.get("PYTHON", Path(sys.executable).name))
    started = time.time()
    with only_one(venv):
        if is_complete(venv):
            return
        if not venv.exists():
            say(f"Creating {venv.name} with Python {sys.version.split()[0]}")
            create(venv)
        else:
            reason = fault(venv)
            if reason:
                say(f"{venv.name} is not usable ({reason}): making it again")
                create(venv)
        for name in (STAMP, UNFINISHED):
            with contextlib.suppress(OSError):
                (venv / name).unlink()
        (venv / UNFINISHED).touch()
        say("Installing the versions in constraints.txt (a few minutes)")
        install(venv, started)
        check_opencv(venv, started)
        version = python_version(venv)
        if version is None:
            raise SetupError(f"{venv.name} stopped working during the installation")
        (venv / STAMP).write_text(fingerprint(version) + "\n")
        (venv / UNFINISHED).unlink()
        say(f"{venv.name} is ready after {time.time() - started:.0f} s")


def say(sentence: str) -> None:
    """Print at once, also into a pipe."""
    print(sentence, flush=True)


def stop(sentence: str, status: int) -> NoReturn:
    """End with one sentence on stderr."""
    sys.stdout.flush()
    print("Set-up stopped: " + sentence + ".", file=sys.stderr)
    sys.exit(status)


def main(arguments: Optional[List[str]] = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="default: %(default)s")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that pip is stopped as well
    try:
        set_up(Path(os.path.abspath(str(options.venv))))
    except SetupError as error:
        stop(str(error), 1)
    except OSError as error:
        stop(f"{error.filename or options.venv}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        stop("interrupted; the next run starts over", 130)


if __name__ == "__main__":
    main()
