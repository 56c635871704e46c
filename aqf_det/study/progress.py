"""What a long run says while it works: the step, how far it is, and how long it will still take."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from mmengine.hooks import Hook

#: Seconds of the estimate that count as already observed, so that the first guess is not wild.
PRIOR_SECONDS = 10.0
#: Without a terminal a line is printed this often.
LINE_SECONDS = 15.0


@dataclass(frozen=True)
class Step:
    """One resumable piece of a run.

    Attributes:
        title: What the step does, in a few words.
        seconds: How long it takes on two cores, for the estimate of the remaining time.
        is_done: Whether its result is there already.
        run: Does it; is given a function to be called with the finished share, 0 ... 1.
    """

    title: str
    seconds: float
    is_done: Callable[[], bool]
    run: Callable[[Callable[[float], None]], None]


def duration(seconds: float) -> str:
    """A duration for people.

    Example:
        >>> duration(8.2), duration(95), duration(600)
        ('8 s', '1 min 35 s', '10 min')
    """
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")


@dataclass
class Progress:
    """Prints where a run of several steps is; one line that is rewritten on a terminal.

    Attributes:
        seconds: Expected seconds of every step.
        stream: Where to print.
        clock: Source of the time.
    """

    seconds: Sequence[float]
    stream: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._skipped = 0.0
        self._finished = 0.0
        self._begun = self.clock()
        self._last_line = float("-inf")
        self._width = 0

    def remaining(self, current: float = 0.0) -> float:
        """Expected seconds until the end when `current` expected seconds of the step are done."""
        done = self._finished + current
        left = sum(self.seconds) - self._skipped - done
        elapsed = self.clock() - self._begun
        return max(0.0, left) * (elapsed + PRIOR_SECONDS) / (done + PRIOR_SECONDS)

    def skip(self, index: int, title: str) -> None:
        """Say that a step was done by an earlier run."""
        self._skipped += self.seconds[index]
        self._write(self._head(index, title) + "  done before", final=True)

    def update(self, index: int, title: str, share: float) -> None:
        """Say how far a step is."""
        terminal = self.stream.isatty()
        now = self.clock()
        if not terminal and now - self._last_line < LINE_SECONDS:
            return
        self._last_line = now
        left = duration(self.remaining(share * self.seconds[index]))
        text = f"{self._head(index, title)}  {share:4.0%}  about {left} left"
        self._write(text, final=not terminal)

    def finish(self, index: int, title: str, taken: float) -> None:
        """Say that a step is done."""
        self._finished += self.seconds[index]
        self._last_line = self.clock()
        self._write(f"{self._head(index, title)}  {duration(taken)}", final=True)

    def interrupt(self) -> None:
        """Leave a half-written line."""
        if self._width:
            self._write("", final=True)

    def _head(self, index: int, title: str) -> str:
        return f"[{index + 1}/{len(self.seconds)}] {title}"

    def _write(self, text: str, final: bool) -> None:
        start = "\r" if self._width else ""
        self.stream.write(start + text.ljust(self._width) + ("\n" if final else ""))
        self.stream.flush()
        self._width = 0 if final else len(text)


def run_steps(steps: Sequence[Step], stream: TextIO | None = None) -> float:
    """Run the steps that are not done yet, in order; returns the seconds it took.

    An interruption leaves finished steps finished: running again goes on with the next one.
    """
    progress = Progress([step.seconds for step in steps], stream or sys.stdout)
    begun = time.monotonic()
    try:
        for index, step in enumerate(steps):
            if step.is_done():
                progress.skip(index, step.title)
                continue
            at = time.monotonic()

            def report(share: float, index: int = index, title: str = step.title) -> None:
                progress.update(index, title, share)

            report(0.0)
            step.run(report)
            progress.finish(index, step.title, time.monotonic() - at)
    except BaseException:
        progress.interrupt()
        raise
    return time.monotonic() - begun


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Append everything printed and logged meanwhile to a file instead of the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("a") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        yield


class ShareHook(Hook):
    """Tells how much of a training or test run is done."""

    priority = "VERY_LOW"

    def __init__(self, report: Callable[[float], None]) -> None:
        self.report = report
        self.first: int | None = None

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Count iterations of this run; a resumed one or one at stage 2 does not begin at 0."""
        if self.first is None:
            self.first = runner.iter
        todo = runner.max_iters - self.first
        self.report((runner.iter + 1 - self.first) / max(1, todo))

    def after_test_iter(self, runner: Any, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        """Count test batches."""
        self.report((batch_idx + 1) / len(runner.test_dataloader))
