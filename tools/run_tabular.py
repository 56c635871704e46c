"""Predictive distributions of tables: the paper's Table 1, two classes, joint targets, and peers.

Examples:
    python tools/run_tabular.py --datasets yacht boston concrete energy --methods all --seeds 5
    python tools/run_tabular.py --datasets kc2 diabetes enb --first-seed 5 --seeds 10
    python tools/run_tabular.py --csv houses.csv --target price --methods qfr gp

Results are appended to a file, one JSON line per (data set, method, seed); a second run only does
what is missing, and writes a page with figures from all of them. Other libraries (ngboost,
catboost, lightgbm, xgboost, quantile-forest) take part when they are installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from aqf_core.datasets import BUNDLED, UCI, read_csv
from aqf_core.experiments.records import Record, RecordFile
from aqf_core.experiments.runner import Job, known_jobs, run_and_report, run_tool, shown_command
from aqf_core.experiments.tabular import choose_methods, choose_tables, jobs_for
from aqf_core.experiments.tabular_report import commands_for, write_report


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--datasets", nargs="+", default=[], help=f"of {', '.join([*UCI, *BUNDLED])}"
    )
    parser.add_argument("--csv", type=Path, help="a table of your own, with a header line")
    parser.add_argument("--target", nargs="+", default=[], help="column(s) to predict")
    parser.add_argument("--task", choices=["regression", "classification"], help="of the CSV file")
    parser.add_argument(
        "--methods", nargs="+", default=["all"], help='names, or "all", "own" or "peers"'
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of random splits")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first split")
    parser.add_argument("--data-root", help="folder that holds uci/ (default: $AQF_DATA or data)")
    parser.add_argument("--output", type=Path, default=Path("runs/tabular.jsonl"))
    parser.add_argument("--markdown", type=Path, help="page (default: beside the output)")
    parser.add_argument(
        "--report-only", action="store_true", help="run nothing, report what is known"
    )
    args = parser.parse_args(arguments)
    if args.seeds < 1 or args.first_seed < 0:
        parser.error("--seeds must be at least 1 and --first-seed at least 0.")
    if bool(args.csv) != bool(args.target):
        parser.error("--csv and --target go together: which column is to be predicted?")
    if args.csv and args.datasets:
        parser.error("--csv and --datasets exclude each other.")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing and write the report; returns the exit status."""
    args = parse(arguments)
    torch.set_num_threads(1)
    if args.csv:
        tables, remarks = [read_csv(args.csv, args.target, args.task)], []
    else:
        tables, remarks = choose_tables(args.datasets, args.data_root)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs: list[Job] = []
    absent: list[str] = []
    for table in tables:
        methods, missing = choose_methods(table.task, args.methods)
        absent += missing
        jobs += jobs_for(table, methods, seeds)
    if absent:
        remarks.append(f"Not installed and left out: {', '.join(dict.fromkeys(absent))}.")
    if not jobs:
        remarks.append("None of the chosen methods fits the chosen data sets; nothing to do.")
    for remark in remarks:
        print(remark, file=sys.stderr)
    if not jobs:
        return 2
    command = shown_command("run_tabular", arguments or sys.argv[1:])
    page, file = args.markdown or args.output.with_suffix(".md"), RecordFile(args.output)
    if args.report_only:
        jobs = known_jobs(jobs, file)
        if not jobs:
            print(f"{args.output} holds none of these results.", file=sys.stderr)
            return 2

    def report(results: list[Record]) -> list[Path]:
        several = args.report_only and not args.csv
        return write_report(results, page, commands_for(results) if several else command)

    return run_and_report(jobs, file, report)


if __name__ == "__main__":
    sys.exit(run_tool(main))
