"""Do what is missing: a list of jobs, a file of results, and a line of progress for each job."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ..errors import AQFError
from .records import Record, RecordFile, matches

__all__ = [
    "Job",
    "known_jobs",
    "known_results",
    "run_and_report",
    "run_jobs",
    "run_tool",
    "shown_command",
]


@dataclass(frozen=True)
class Job:
    """One result to be had.

    Attributes:
        key: entries that tell it from all others; stored with the result.
        work: computes the other entries.
        headline: the entry that is shown when it is done.
    """

    key: Record
    work: Callable[[], Record]
    headline: str = "crps"

    @property
    def title(self) -> str:
        return f"{self.key['dataset']}, {self.key['method']}, seed {self.key['seed']}"


def known_results(jobs: Sequence[Job], file: RecordFile) -> list[Record | None]:
    """The newest result of each job that is in the file, None for those that are not."""
    known = file.read()
    return [next((r for r in reversed(known) if matches(r, job.key)), None) for job in jobs]


def run_jobs(
    jobs: Sequence[Job], file: RecordFile, stream: TextIO | None = None
) -> tuple[list[Record], list[str]]:
    """Do the jobs whose results are not in the file, and append theirs one by one.

    A job that fails is told and left out, so that one library cannot stop the others.

    Returns:
        The results of all jobs that have one, and the failures.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = RecordFile(Path(tempfile.mkdtemp()) / "r.jsonl")
        >>> key = {"dataset": "a", "method": "m", "seed": 0}
        >>> results, failures = run_jobs([Job(key, lambda: {"crps": 1.0})], file)
        >>> results[0]["crps"], len(run_jobs([Job(key, dict)], file)[0]), failures
        (1.0, 1, [])
    """
    stream = stream or sys.stderr
    done = known_results(jobs, file)
    missing = [i for i, record in enumerate(done) if record is None]
    if len(missing) < len(jobs):
        print(f"{len(jobs) - len(missing)} of {len(jobs)} results are known.", file=stream)
    failures, start = [], time.monotonic()
    for count, i in enumerate(missing, 1):
        job = jobs[i]
        began = time.process_time()
        try:
            entries = job.work()
        except Exception as error:
            failures.append(f"{job.title}: {type(error).__name__}: {error}")
            print(f"[{count}/{len(missing)}] {failures[-1]}", file=stream, flush=True)
            continue
        record = job.key | entries | {"cpu_seconds": round(time.process_time() - began, 2)}
        file.append(record)
        done[i] = record
        left = (time.monotonic() - start) / count * (len(missing) - count)
        print(
            f"[{count}/{len(missing)}] {job.title}: {job.headline} {record[job.headline]:.4f}, "
            f"{record['cpu_seconds']:.1f} s; about {left / 60:.0f} min left",
            file=stream,
            flush=True,
        )
    return [record for record in done if record is not None], failures


def known_jobs(jobs: Sequence[Job], file: RecordFile) -> list[Job]:
    """The jobs whose results are in the file."""
    return [job for job, r in zip(jobs, known_results(jobs, file), strict=True) if r is not None]


def run_and_report(
    jobs: Sequence[Job], file: RecordFile, report: Callable[[list[Record]], list[Path]]
) -> int:
    """Do the jobs, write a report of all results and name the failures.

    Args:
        jobs: what is wanted.
        file: where results are and go.
        report: writes the report and returns the files that it consists of.

    Returns:
        Exit status: 1 if a job failed.
    """
    results, failures = run_jobs(jobs, file)
    if results:
        print(*report(results), sep="\n")
    if failures:
        print("Failed:", *failures, sep="\n", file=sys.stderr)
    return int(bool(failures))


def shown_command(tool: str, arguments: Sequence[str]) -> str:
    """The command for a page: without the places where this machine keeps data and results, and
    with the work even if its results were there already.

    Example:
        >>> shown_command("run_tabular", ["--output", "r", "--report-only", "--csv", "a b.csv"])
        "python tools/run_tabular.py --csv 'a b.csv'"
    """
    kept: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word in ("--data-root", "--output"):
            next(rest, None)
        elif word != "--report-only" and not word.startswith(("--data-root=", "--output=")):
            kept.append(word)
    return shlex.join(["python", f"tools/{tool}.py", *kept])


def run_tool(main: Callable[[], Any]) -> int:
    """Run the main function of a tool and return its exit status.

    What is wrong with the input ends with its one sentence, an interruption with how to go on.
    """
    try:
        return int(main() or 0)
    except (AQFError, FileNotFoundError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on where it was.", file=sys.stderr)
        return 130
