"""Speed and memory of the estimators: steps of a bag, fits, predictions, a large table.

    python tools/benchmark_tabular.py --markdown docs/results/tabular_speed.md

The step of a bag and of one network take turns, and the fastest of several repeats counts. Fits use
one thread, predictions `--threads`. The large fit runs in a process of its own, which reports its
peak memory above what it held with the data loaded. `--parts` measures some of it, for example
while the machine is idle, and takes the rest from the file of `--json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark_core import Run, interleaved, number, processor, publish
from numpy.typing import NDArray

from aqf_core.estimators import QuantileFlowRegressor, prediction
from aqf_core.estimators.optimiser import BagAdamW

LEVELS = np.arange(1, 100) / 100
PARTS = ("steps", "fits", "speed", "large")
# Rows and columns of small tables whose fits are timed: those of the experiments.
TABLES = ((231, 6), (379, 13), (576, 8), (772, 8))
Table = tuple[NDArray[np.float64], NDArray[np.float64]]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the large table")
    parser.add_argument("--columns", type=int, default=20, help="columns of the large table")
    parser.add_argument("--predict-rows", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write all measurements here")
    parser.add_argument("--markdown", type=Path, help="write a page with the tables here")
    parser.add_argument("--large-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if len(set(options.parts)) < len(PARTS) and not options.json:
        parser.error("--parts needs --json, the file that holds the other parts.")
    return options


def table(rows: int, columns: int) -> Table:
    """A nonlinear mean, an interaction, and skewed noise that grows with a feature."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    noise = rng.exponential(size=rows)
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.exp(0.5 * X[:, 3]) * noise


def step(members: int, rows: int = 128) -> Run:
    """One training step of a bag with the default network on a batch of a mid-sized table."""
    X, y = table(1000, 8)
    model = QuantileFlowRegressor(members=members, steps=1, random_state=0).fit(X, y).fitted_.model
    model = model.float().train()
    optimiser = BagAdamW(model.network, 1e-2, 0.98)
    batch = model.encoding(model.encoding.standardise(X[:rows]).float())
    batch = batch.expand(members, *batch.shape).contiguous()
    target = torch.from_numpy(y[:rows]).float().expand(members, rows)

    def run() -> None:
        model.loss(batch, target).mean(-1).sum().backward()
        optimiser.step(1e-3)

    return run


def fit_seconds(preset: str) -> list[float]:
    """Seconds of one thread's CPU time for each of the small tables."""
    seconds = []
    for rows, columns in TABLES:
        X, y = table(rows, columns)
        start = time.process_time()
        QuantileFlowRegressor(preset, random_state=0).fit(X, y)
        seconds.append(time.process_time() - start)
    return seconds


@contextmanager
def pinned() -> Iterator[None]:
    """Keep each thread that predicts on a core of its own, where the system lets threads choose.

    Some virtual machines leave threads that wake each other on one core, however idle the rest.
    """
    original, cores = prediction.ThreadPoolExecutor, itertools.cycle(os.sched_getaffinity(0))

    def pool(workers: int) -> ThreadPoolExecutor:
        return original(workers, initializer=lambda: os.sched_setaffinity(0, {next(cores)}))

    prediction.ThreadPoolExecutor = pool  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        prediction.ThreadPoolExecutor = original  # type: ignore[misc]


def rows_per_second(
    preset: str, rows: int, columns: int, threads: int = 1, pin: bool = False
) -> float:
    """How many rows get 99 quantiles in a second, the best of two runs after one to warm up."""
    X, y = table(5000, columns)
    model = QuantileFlowRegressor(preset, steps=100, random_state=0).fit(X, y)
    X = table(rows, columns)[0]
    torch.set_num_threads(threads)
    with pinned() if pin else nullcontext():
        times = interleaved({"": lambda: model.predict_quantiles(X, LEVELS)}, repeats=2)
    torch.set_num_threads(1)
    return rows / times[""]


def large_fit(rows: int, columns: int) -> dict[str, float]:
    """Seconds, peak memory in MB above the loaded table, and how good the fit is."""
    QuantileFlowRegressor("fast", steps=2).fit(*table(200, columns))  # load what a fit loads
    X, y = table(rows + 10_000, columns)

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before, start = peak(), time.perf_counter()
    model = QuantileFlowRegressor(random_state=0).fit(X[:rows], y[:rows])
    seconds, memory = time.perf_counter() - start, peak() - before
    held_X, held_y = X[rows:], y[rows:]
    low, high = model.predict_interval(held_X, 0.9).T
    # The truth: an exponential of known scale above a known mean.
    scale = np.exp(0.5 * held_X[:, 3])
    start_at = np.sin(2 * held_X[:, 0]) + held_X[:, 1] * held_X[:, 2]
    above = (held_y - start_at) / scale
    truth = float((scale * (above + 2 * np.exp(-above) - 1.5)).mean())
    return {
        "seconds": seconds,
        "memory": memory,
        "crps": -model.score(held_X, held_y),
        "true_crps": truth,
        "coverage": float(((held_y >= low) & (held_y <= high)).mean()),
    }


def goals(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Every stated goal: what was measured, the bound, and success."""
    speed, large = report["speed"], report["large"]
    rows = [
        ("step of 10 members / step of one", report["steps"]["ratio"], "<=", 2.5),
        ("median fit of `default`, s", statistics.median(report["fits"]["default"]), "<=", 30),
        ("median fit of `fast`, s", statistics.median(report["fits"]["fast"]), "<=", 3),
        ("rows per second, 99 quantiles, `default`", speed["default"], ">=", 20_000),
        ("rows per second, 99 quantiles, `fast`", speed["fast"], ">=", 200_000),
        (f"extra memory of a fit on {report['rows']:,} rows, MB", large["memory"], "<=", 2048),
    ]
    return [
        {
            "what": what,
            "measured": value,
            "goal": f"{sign} {bound:,g}",
            "met": value >= bound if sign == ">=" else value <= bound,
        }
        for what, value, sign, bound in rows
    ]


def _pinned_lines(report: dict[str, Any]) -> list[str]:
    speed = report.get("pinned")
    if not speed:
        return []
    return [
        "With each predicting thread kept on a core of its own, which systems may or may not do "
        f"by themselves, `default` gives {number(speed['default'])} rows per second and `fast` "
        f"{number(speed['fast'])}.",
        "",
    ]


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    missed = [row["what"] for row in report["goals"] if not row["met"]]
    large, steps = report["large"], report["steps"]
    lines = [
        "# Speed and memory of the estimators",
        "",
        f"Machine: {report['machine']}. Fits use one thread, predictions {report['threads']}.",
        "",
        "Missed goals: " + ("none." if not missed else "; ".join(missed) + "."),
        "",
        "| goal | measured | wanted | met |",
        "|---|---|---|---|",
    ]
    for row in report["goals"]:
        met = "yes" if row["met"] else "**no**"
        lines.append(f"| {row['what']} | {number(row['measured'])} | {row['goal']} | {met} |")
    shapes = [f"{rows} x {columns}" for rows, columns in TABLES]
    lines += ["", "| seconds of a fit | " + " | ".join(shapes) + " |"]
    lines += ["|---" * (len(shapes) + 1) + "|"]
    for preset, seconds in report["fits"].items():
        lines.append(f"| `{preset}` | " + " | ".join(map(number, seconds)) + " |")
    lines += [
        "",
        f"A step on 128 rows takes {1e3 * steps['one']:.2f} ms with one network and "
        f"{1e3 * steps['ten']:.2f} ms with ten.",
        "",
        *_pinned_lines(report),
        f"A fit on {report['rows']:,} x {report['columns']} takes {large['seconds']:.0f} s and "
        f"{large['memory']:.0f} MB beyond the table. On 10,000 new rows its CRPS is "
        f"{large['crps']:.4f} where the true distributions score {large['true_crps']:.4f}, and its "
        f"90 % intervals cover {large['coverage']:.1%}.",
        "",
        "```bash",
        "python tools/benchmark_tabular.py --markdown docs/results/tabular_speed.md",
        "```",
    ]
    return "\n".join(lines) + "\n"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The chosen parts; the others as the file has them."""
    report: dict[str, Any] = {}
    if len(set(options.parts)) < len(PARTS) and options.json.exists():
        report = json.loads(options.json.read_text())
    report |= {"rows": options.rows, "columns": options.columns, "threads": options.threads}
    torch.set_num_threads(1)
    if "steps" in options.parts:
        times = interleaved({"one": step(1), "ten": step(10)}, options.repeats)
        report["steps"] = times | {"ratio": times["ten"] / times["one"]}
    if "fits" in options.parts:
        fit_seconds("fast")  # load what a fit loads
        report["fits"] = {preset: fit_seconds(preset) for preset in ("fast", "default")}
    if "speed" in options.parts:
        size = options.predict_rows, options.columns, options.threads
        report["speed"] = {p: rows_per_second(p, *size) for p in ("fast", "default")}
        if hasattr(os, "sched_setaffinity"):
            report["pinned"] = {p: rows_per_second(p, *size, pin=True) for p in ("fast", "default")}
    if "large" in options.parts:
        own = [sys.executable, __file__, "--large-only"]
        own += ["--rows", str(options.rows), "--columns", str(options.columns)]
        child = subprocess.run(own, check=True, stdout=subprocess.PIPE, text=True)
        report["large"] = json.loads(child.stdout.splitlines()[-1])
    return report


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.large_only:
        torch.set_num_threads(1)
        print(json.dumps(large_fit(options.rows, options.columns)))
        return
    report = measure(options)
    missing = [part for part in PARTS if part not in report]
    if missing:
        options.json.write_text(json.dumps(report, indent=2))
        print(f"Still to be measured: {', '.join(missing)}.")
        return
    report["goals"] = goals(report)
    report["machine"] = (
        f"{processor()}, torch {torch.__version__}, Python {platform.python_version()}"
    )
    publish(report, page(report), options)


if __name__ == "__main__":
    main()
