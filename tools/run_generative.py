"""Generative modelling: MAF-LL, MAF-QL and NAQF on digits, MNIST, density data or your own table.

Examples:
    python tools/run_generative.py                                     # digits; needs no data
    python tools/run_generative.py --dataset power --methods all --seeds 3 --cpu-seconds 60
    python tools/run_generative.py --csv customers.csv --methods naqf data

Results are appended to a file, one JSON line per (data set, method, seed), and a training that was
interrupted goes on from its last evaluation; a second run only does what is missing. At the end
a page with scores, samples and training curves is written from all of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from aqf_core.conditioners import CONDITIONERS
from aqf_core.experiments.generative.jobs import (
    RECIPES,
    changed,
    choose_data,
    choose_methods,
    jobs_for,
)
from aqf_core.experiments.generative.models import METHODS
from aqf_core.experiments.generative.report import write_report
from aqf_core.experiments.records import RecordFile
from aqf_core.experiments.runner import (
    Job,
    known_results,
    run_and_report,
    run_tool,
    shown_command,
)
from aqf_core.transformers import TRANSFORMERS


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", nargs="+", choices=list(RECIPES), default=[])
    parser.add_argument("--csv", type=Path, help="a table of numbers of your own, with a header")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["paper", "data"],
        help=f'of {", ".join(METHODS)}, "data" (training rows as samples), "paper" or "all"',
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of trainings of each method")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--side", type=int, choices=[28, 14], default=28, help="of MNIST images")
    model = parser.add_argument_group("instead of the recipe of the data set")
    model.add_argument("--conditioner", choices=[c for c in CONDITIONERS if c != "independent"])
    model.add_argument("--hidden", type=int, nargs="+", help="layer sizes of NAQF")
    model.add_argument("--transformer", choices=list(TRANSFORMERS), help="of NAQF")
    model.add_argument("--levels", type=int, help="quantile levels per variable and step")
    model.add_argument(
        "--by-class", action=argparse.BooleanOptionalAction, help="draw the class of images first"
    )
    model.add_argument(
        "--linear",
        action=argparse.BooleanOptionalAction,
        help="model what a linear prediction from the earlier variables leaves over; tables only",
    )
    model.add_argument("--steps", type=int)
    model.add_argument("--cpu-seconds", type=float, help="of training, instead of --steps")
    model.add_argument("--batch-size", type=int)
    model.add_argument("--learning-rate", type=float)
    model.add_argument("--weight-decay", type=float)
    model.add_argument("--evaluations", type=int, help="points of the training curves")
    model.add_argument("--keep", choices=["best", "last"], help="weights by validation rows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data-root", help="folder that holds density/ and mnist/")
    parser.add_argument("--output", type=Path, default=Path("runs/generative.jsonl"))
    parser.add_argument("--markdown", type=Path, help="page (default: beside the output)")
    parser.add_argument(
        "--report-only", action="store_true", help="write the page from the results that are known"
    )
    args = parser.parse_args(arguments)
    if args.csv and args.dataset not in ([], ["csv"]):
        parser.error("--csv and --dataset exclude each other.")
    if args.dataset == ["csv"] and not args.csv:
        parser.error("--dataset csv needs --csv FILE.")
    for name in ("seeds", "steps", "batch_size", "levels", "evaluations", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1.")
    for name in ("cpu_seconds", "learning_rate"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} must be positive.")
    if args.first_seed < 0 or (args.weight_decay is not None and args.weight_decay < 0):
        parser.error("--first-seed and --weight-decay must not be negative.")
    if args.hidden and min(args.hidden) < 1:
        parser.error("--hidden sizes must be at least 1.")
    args.dataset = ["csv"] if args.csv else list(dict.fromkeys(args.dataset)) or ["digits"]
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing and write the report; returns the exit status."""
    args = parse(arguments)
    torch.set_num_threads(args.threads)
    folder = args.output.with_name(f"{args.output.stem}_samples")
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs: list[Job] = []
    absent: list[str] = []
    for name in args.dataset:
        recipe = changed(
            RECIPES[name],
            conditioner=args.conditioner,
            hidden=tuple(args.hidden) if args.hidden else None,
            transformer=args.transformer,
            levels=args.levels,
            by_class=args.by_class,
            linear=args.linear,
            steps=args.steps,
            cpu_seconds=args.cpu_seconds,
            batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            evaluations=args.evaluations,
            keep=args.keep,
        )
        data = choose_data(name, args.data_root, args.csv, args.side)
        methods, missing = choose_methods(args.methods, images=name in ("digits", "mnist"))
        absent += missing
        jobs += jobs_for(data, methods, seeds, recipe, folder)
    if absent:
        print(f"Not installed and left out: {', '.join(dict.fromkeys(absent))}.", file=sys.stderr)
    command = shown_command("run_generative", arguments or sys.argv[1:])
    page = args.markdown or args.output.with_suffix(".md")
    file = RecordFile(args.output)
    if args.report_only:
        known = [record for record in known_results(jobs, file) if record is not None]
        if not known:
            print(f"{args.output} has none of these results; run them first.", file=sys.stderr)
            return 2
        print(*write_report(known, page, command, folder), sep="\n")
        return 0
    return run_and_report(jobs, file, lambda results: write_report(results, page, command, folder))


if __name__ == "__main__":
    sys.exit(run_tool(main))
