"""Speed and memory of aqf_core beside zuko, as ratios within one run.

    python tools/benchmark_core.py --markdown docs/results/core_speed.md

All flows have one autoregressive layer with the same hidden sizes. Competitors take turns, and the
fastest of several repeats counts, so that other load on the machine hurts all of them alike.
zuko's NAF inverts by bisection and is timed on fewer points; the time is scaled to the full number.
With --json the run can be split, one dimension at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Threads that stay on their cores; read when torch is imported.
os.environ.setdefault("OMP_PROC_BIND", "true")

import torch

from aqf_core import AutoregressiveQuantileFlow
from aqf_core.experiments.comparison import hand_written

HIDDEN = (64, 64)
MEMORY_POINTS, MEMORY_FEATURES = 100_000, 63
Run = Callable[[], Any]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dims", type=int, nargs="+", default=[6, 21, 63])
    parser.add_argument("--points", type=int, default=10_000, help="points per sampling run")
    parser.add_argument("--naf-points", type=int, default=500, help="points for zuko's NAF")
    parser.add_argument("--batch", type=int, default=512, help="rows per density and training step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--slow-repeats", type=int, default=2, help="of sampling from zuko's NSF")
    parser.add_argument(
        "--json", type=Path, help="write all measurements here; dimensions already there are kept"
    )
    parser.add_argument("--markdown", type=Path, help="write a page with the tables here")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def interleaved(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Best time in seconds of every run, taking turns."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def training_step(flow: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Run:
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return step


def measure(d: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Times in seconds of sampling, one conditioner pass, log densities and training steps."""
    import zuko

    torch.manual_seed(0)
    ours = {
        name: AutoregressiveQuantileFlow(d, transformer=name, hidden=HIDDEN)
        for name in ("affine", "spline", "deep_sigmoid", "sigmoid_mixture", "monotone_net")
    }
    theirs = {
        "zuko MAF": zuko.flows.MAF(d, transforms=1, hidden_features=HIDDEN),
        "zuko NSF": zuko.flows.NSF(d, transforms=1, hidden_features=HIDDEN),
        "zuko NAF": zuko.flows.NAF(d, transforms=1, hidden_features=HIDDEN),
    }
    points, rows = torch.randn(options.points, d), torch.randn(options.batch, d)
    n, repeats = options.points, options.repeats

    with torch.no_grad():
        passes: dict[str, Run] = {
            f"pass {name}": lambda flow=flow: flow.conditioner(points)
            for name, flow in ours.items()
        }
        sampling: dict[str, Run] = {
            name: lambda flow=flow: flow.sample(n) for name, flow in ours.items()
        }
        sampling["zuko MAF"] = lambda: theirs["zuko MAF"]().sample((n,))
        fast = interleaved(passes | sampling, repeats)
        # The slow ones: few repeats, beside the flow they are compared with.
        pair: dict[str, Run] = {
            "spline": sampling["spline"],
            "zuko NSF": lambda: theirs["zuko NSF"]().sample((n,)),
        }
        slow = interleaved(pair, options.slow_repeats)
        slow["spline"] = min(slow["spline"], fast["spline"])
        few = options.naf_points
        theirs["zuko NAF"]().sample((10,))
        start = time.perf_counter()
        theirs["zuko NAF"]().sample((few,))
        slow["zuko NAF"] = (time.perf_counter() - start) * n / few
        density: dict[str, Run] = {
            name: lambda flow=flow: flow.log_prob(rows)
            for name, flow in ours.items()
            if name in ("affine", "spline")
        }
        density |= {name: lambda flow=flow: flow().log_prob(rows) for name, flow in theirs.items()}
        densities = interleaved(density, repeats)

    steps: dict[str, Run] = {
        name: training_step(flow, lambda flow=flow: flow.loss(rows)) for name, flow in ours.items()
    }
    steps |= {
        name: training_step(flow, lambda flow=flow: -flow().log_prob(rows).mean())
        for name, flow in theirs.items()
    }
    sampled = {k: v for k, v in fast.items() if not k.startswith("pass ")}
    return {
        "sample": sampled | slow,
        "pass": {k.removeprefix("pass "): v for k, v in fast.items() if k.startswith("pass ")},
        "log_prob": densities,
        "step": interleaved(steps, repeats),
    }


def sampling_memory() -> dict[str, float]:
    """Peak memory in MB of sampling, above what the process had before; run in a new process."""
    import resource

    flow = AutoregressiveQuantileFlow(MEMORY_FEATURES, hidden=HIDDEN)
    flow.sample(16)  # load what the first call loads

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before = peak()
    sample = flow.sample(MEMORY_POINTS)
    output = sample.numel() * sample.element_size() / 2**20
    return {"output": output, "peak": peak() - before, "limit": 1.5 * output + 200}


def goals(results: dict[int, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """Every stated goal: a ratio, whether it must be at least or at most the bound, and success."""
    rows: list[dict[str, Any]] = []

    def goal(d: int, what: str, ratio: float, bound: float, at_least: bool = True) -> None:
        met = ratio >= bound if at_least else ratio <= bound
        sign = ">=" if at_least else "<="
        rows.append({"d": d, "what": what, "ratio": ratio, "goal": f"{sign} {bound:g}", "met": met})

    for d, result in results.items():
        sample, steps = result["sample"], result["step"]
        for name in ("spline", "deep_sigmoid", "sigmoid_mixture", "monotone_net"):
            bound = 400.0 if d <= 6 else 5000.0 if d >= 63 else 400.0
            goal(d, f"sampling: zuko NAF / {name}", sample["zuko NAF"] / sample[name], bound)
        if d >= 21:
            goal(d, "sampling: zuko NSF / spline", sample["zuko NSF"] / sample["spline"], 100)
        for name in ("affine", "spline"):
            goal(d, f"sampling: zuko MAF / {name}", sample["zuko MAF"] / sample[name], 2)
        passes = sample["spline"] / result["pass"]["spline"]
        goal(d, "sampling in conditioner passes: spline", passes, 3, at_least=False)
        density = result["log_prob"]
        goal(d, "log_prob: zuko NSF / spline", density["zuko NSF"] / density["spline"], 1)
        goal(d, "training step: zuko NSF / spline", steps["zuko NSF"] / steps["spline"], 1)
        goal(d, "training step: zuko NAF / spline", steps["zuko NAF"] / steps["spline"], 4)
    return rows


def tables(report: dict[str, Any]) -> str:
    """The report as a page."""
    missed = [f"{row['what']} (d = {row['d']})" for row in report["goals"] if not row["met"]]
    lines = [
        "# Speed and memory of aqf_core beside zuko",
        "",
        "One autoregressive layer, hidden layers "
        f"{HIDDEN}; everything of one dimension in one process, taking turns, the fastest of "
        f"{report['repeats']} repeats ({report['slow_repeats']} for sampling from zuko's NSF). "
        f"zuko's NAF inverts by bisection: it is timed once on {report['naf_points']} points and "
        "scaled.",
        f"Machine: {report['machine']}.",
        "",
        "Missed goals: " + ("none." if not missed else "; ".join(missed) + "."),
        "",
    ]
    titles = {
        "sample": f"Sampling {report['points']:,} points, ms",
        "pass": f"One conditioner pass over {report['points']:,} points, ms",
        "log_prob": f"log_prob of {report['batch']} points, ms",
        "step": f"One training step of {report['batch']} points, ms",
    }
    dims = list(report["results"])
    for kind, title in titles.items():
        lines += [f"| {title} | " + " | ".join(f"d = {d}" for d in dims) + " |"]
        lines += ["|---" * (len(dims) + 1) + "|"]
        for name in report["results"][dims[0]][kind]:
            values = " | ".join(number(report["results"][d][kind][name] * 1e3) for d in dims)
            lines.append(f"| {name} | {values} |")
        lines.append("")
    lines += ["| goal | d | measured | wanted | met |", "|---|---|---|---|---|"]
    for row in report["goals"]:
        met = "yes" if row["met"] else "**no**"
        ratio = number(row["ratio"])
        lines.append(f"| {row['what']} | {row['d']} | {ratio} | {row['goal']} | {met} |")
    memory = report["memory"]
    lines += [
        "",
        f"Peak memory of sampling {MEMORY_POINTS:,} x {MEMORY_FEATURES} points: "
        f"{memory['peak']:.0f} MB above the process, of which {memory['output']:.0f} MB are the "
        f"result (limit {memory['limit']:.0f} MB).",
        "",
        "```bash",
        "python tools/benchmark_core.py --markdown docs/results/core_speed.md",
        "```",
    ]
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def goal_lines(goals: list[dict[str, Any]]) -> list[str]:
    """What was missed, and a table of all goals: rows of what, measured, goal and met."""
    missed = [row["what"] for row in goals if not row["met"]]
    lines = [
        "Missed goals: " + ("none." if not missed else "; ".join(missed) + "."),
        "",
        "| goal | measured | wanted | met |",
        "|---|---|---|---|",
    ]
    for row in goals:
        met = "yes" if row["met"] else "**no**"
        lines.append(f"| {row['what']} | {number(row['measured'])} | {row['goal']} | {met} |")
    return lines


def processor() -> str:
    """The name of the processor, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def earlier(options: argparse.Namespace) -> dict[int, Any]:
    """The dimensions that an earlier run measured and wrote to the same file."""
    if options.json is None or not options.json.exists():
        return {}
    report = json.loads(options.json.read_text())
    for name in ("points", "naf_points", "batch", "repeats", "slow_repeats"):
        if report[name] != getattr(options, name):
            raise SystemExit(f"{options.json} has {name} = {report[name]}; choose another file.")
    return {int(d): result for d, result in report["results"].items()}


def publish(report: dict[str, Any], text: str, options: argparse.Namespace) -> None:
    """Print the page, and write it, above its notes, and the measurements where options say."""
    print(text)
    if options.markdown is not None:
        text += hand_written(options.markdown)
    for path, content in ((options.json, json.dumps(report, indent=1)), (options.markdown, text)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    if options.memory_only:
        print(json.dumps(sampling_memory()))
        return
    import zuko

    child = subprocess.run(
        [sys.executable, __file__, "--memory-only", "--threads", str(options.threads)],
        check=True,
        capture_output=True,
        text=True,
    )
    results = earlier(options)
    for d in options.dims:
        if d not in results:
            print(f"measuring d = {d} ...", file=sys.stderr, flush=True)
            results[d] = measure(d, options)
    report = {
        "machine": f"{processor()}, {options.threads} threads, torch {torch.__version__}, "
        f"zuko {zuko.__version__}, Python {platform.python_version()}",
        "points": options.points,
        "naf_points": options.naf_points,
        "batch": options.batch,
        "repeats": options.repeats,
        "slow_repeats": options.slow_repeats,
        "results": results,
        "goals": goals(results),
        "memory": json.loads(child.stdout.splitlines()[-1]),
    }
    publish(report, tables(report), options)


if __name__ == "__main__":
    main()
