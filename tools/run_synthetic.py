"""Generated data whose truth is known: noise of three kinds, and chains of 2 and 50 targets.

Example:
    python tools/run_synthetic.py --markdown docs/results/synthetic.md

Results are appended to a file, one JSON line per (data set, method, seed); a second run only does
what is missing, and writes a page with a figure from all of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from aqf_core.datasets import NOISES
from aqf_core.experiments.records import RecordFile
from aqf_core.experiments.runner import run_and_report, run_tool, shown_command
from aqf_core.experiments.synthetic import chain_jobs, noise_jobs
from aqf_core.experiments.synthetic_report import write_report


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", nargs="*", choices=NOISES, default=list(NOISES))
    parser.add_argument("--chains", nargs="*", type=int, default=[2, 50], help="numbers of targets")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--preset", choices=["default", "fast", "paper"], default="fast", help="fast: one network"
    )
    parser.add_argument("--train", type=int, default=5000, help="rows, one target")
    parser.add_argument("--test", type=int, default=2000, help="rows, one target")
    parser.add_argument("--chain-train", type=int, default=5000, help="rows, chains")
    parser.add_argument("--chain-test", type=int, default=500, help="rows, chains")
    parser.add_argument("--samples", type=int, default=256, help="draws per test row, chains")
    parser.add_argument("--output", type=Path, default=Path("runs/synthetic.jsonl"))
    parser.add_argument("--markdown", type=Path, help="page (default: beside the output)")
    args = parser.parse_args(arguments)
    for name in ("train", "test", "chain_train", "chain_test", "samples"):
        if getattr(args, name) < 20:
            parser.error(f"--{name.replace('_', '-')} must be at least 20.")
    if args.seeds < 1 or min(args.chains, default=2) < 2:
        parser.error("--seeds must be at least 1, and a chain has at least 2 targets.")
    if not args.problems and not args.chains:
        parser.error("name some --problems or some --chains.")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing and write the report; returns the exit status."""
    args = parse(arguments)
    torch.set_num_threads(1)
    seeds = range(args.seeds)
    jobs = noise_jobs(args.problems, seeds, args.preset, args.train, args.test)
    jobs += chain_jobs(
        args.chains, seeds, args.preset, args.chain_train, args.chain_test, args.samples
    )
    command = shown_command("run_synthetic", arguments or sys.argv[1:])
    page = args.markdown or args.output.with_suffix(".md")
    return run_and_report(
        jobs, RecordFile(args.output), lambda results: write_report(results, page, command)
    )


if __name__ == "__main__":
    sys.exit(run_tool(main))
