"""Forecasts of time series: quantile flows, DeepAR and MQ-RNN with one encoder, on rolling windows.

Examples:
    python tools/run_timeseries.py --dataset electricity --methods deepar mqrnn aqf --seeds 3
    python tools/run_timeseries.py --csv sales.csv --horizon 24
    torchrun --nproc-per-node 2 tools/run_timeseries.py --dataset wind

Without a data root it runs on simulated loads. Results are appended to a file, one JSON line per
(data set, method, seed); a second run only does what is missing, and writes a page with figures.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from aqf_core.datasets import (
    TIME_SERIES,
    DataError,
    TimeSeries,
    load_time_series,
    read_time_series,
)
from aqf_core.datasets.time_series import available_time_series
from aqf_core.experiments.forecast_report import write_report
from aqf_core.experiments.forecasting import (
    METHODS,
    NAIVE,
    Study,
    choose_forecasters,
    frequency_of,
    jobs_for,
)
from aqf_core.experiments.records import Record, RecordFile
from aqf_core.experiments.runner import (
    Job,
    known_jobs,
    run_and_report,
    run_jobs,
    run_tool,
    shown_command,
)
from aqf_core.forecasting import PRESETS
from aqf_core.forecasting.distributed import is_distributed, process_group, rank, wait
from aqf_core.forecasting.settings import MARGINALS


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", nargs="*", choices=[*TIME_SERIES, "csv"], default=[])
    parser.add_argument("--csv", type=Path, help="a table of series of your own")
    parser.add_argument("--data-root", help="folder of data (default: AQF_DATA or data)")
    names = [m for m in METHODS if m not in NAIVE]
    parser.add_argument("--methods", nargs="+", choices=names, default=["deepar", "mqrnn", "aqf"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--preset", choices=PRESETS, default="default")
    parser.add_argument("--horizon", type=int, default=24)
    parser.add_argument("--context", type=int, help="steps that are read (default: 168 for hours)")
    parser.add_argument("--windows", type=int, help="test windows per series, at the end")
    parser.add_argument("--paths", type=int, default=200, help="sample paths per window")
    parser.add_argument("--steps", type=int, help="optimiser steps (default: of the preset)")
    parser.add_argument(
        "--marginals", choices=MARGINALS, help="where distributions of steps come from"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/timeseries.jsonl"))
    parser.add_argument("--markdown", type=Path, help="page (default: beside the output)")
    parser.add_argument(
        "--report-only", action="store_true", help="run nothing, report what is known"
    )
    args = parser.parse_args(arguments)
    for name in ("seeds", "horizon", "context", "windows", "steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1.")
    if args.paths < 20 or args.first_seed < 0:
        parser.error("--paths must be at least 20 and --first-seed at least 0.")
    if ("csv" in args.dataset) != (args.csv is not None) and (args.dataset or not args.csv):
        parser.error("--dataset csv and --csv FILE go together.")
    return args


def choose(args: argparse.Namespace) -> list[TimeSeries]:
    """The data sets that were asked for; simulated loads if nothing was and nothing is there."""
    if args.csv is not None:
        own = read_time_series(args.csv)
        return [own, *(load_time_series(n, args.data_root) for n in args.dataset if n != "csv")]
    names = args.dataset or available_time_series(args.data_root) or ["simulated"]
    if args.dataset and args.data_root is None and not available_time_series(None):
        replaced = [n for n in args.dataset if n != "simulated"]
        if replaced:
            print(
                f"No files were found, so simulated loads stand in for {', '.join(replaced)}; say "
                "where the files are with --data-root or AQF_DATA.",
                file=sys.stderr,
            )
            names = ["simulated"]
    return [load_time_series(name, args.data_root) for name in names]


class ReadOnly(RecordFile):
    """The results of the first process, for the others."""

    def append(self, record: Record) -> None:
        """Leave writing to the first process."""


def run(args: argparse.Namespace, command: str) -> int:
    """Run what is missing and write the report; returns the exit status."""
    methods, absent = choose_forecasters(args.methods)
    if is_distributed():
        methods = [m for m in methods if m.package is None]
    if absent and rank() == 0:
        print(f"Not installed and left out: {', '.join(absent)}.", file=sys.stderr)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs: list[Job] = []
    about: dict[str, TimeSeries] = {}
    for data in choose(args):
        about[data.name] = data
        study = Study(
            data,
            args.horizon,
            args.context or frequency_of(data).context(),
            args.windows or data.windows,
            0 if args.windows else data.apart,
            args.paths,
            args.steps,
            args.preset,
            args.marginals,
        )
        jobs += jobs_for(study, methods, seeds)
    page = args.markdown or args.output.with_suffix(".md")
    file = RecordFile(args.output)
    if args.report_only:
        jobs = known_jobs(jobs, file)
        if not jobs:
            raise DataError(f"{args.output} holds no result of this command; leave --report-only.")
    wait()
    if rank():
        with open(os.devnull, "w") as nowhere:
            run_jobs(jobs, ReadOnly(args.output), nowhere)
        return 0
    return run_and_report(jobs, file, lambda results: write_report(results, page, command, about))


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run, alone or as one of several processes."""
    args = parse(arguments)
    torch.set_num_threads(1)
    command = shown_command("run_timeseries", arguments or sys.argv[1:])
    with process_group():
        return run(args, command)


if __name__ == "__main__":
    sys.exit(run_tool(main))
