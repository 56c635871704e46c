"""Re-evaluate dumps of matched boxes: PIT, calibration, tables per class and size, comparison.

Example:
    python tools/test.py configs/voc_qfr.py CHECKPOINT --dump work_dirs/qfr.npz
    python tools/analyze.py work_dirs/gaussian.npz work_dirs/qfr.npz --out work_dirs/report
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from aqf_det.evaluation import BoxPairs
from aqf_det.evaluation.matching import PROTOCOLS
from aqf_det.evaluation.report import write_report


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dumps", nargs="+", type=Path, help=".npz written by tools/test.py --dump")
    parser.add_argument("--names", nargs="+", help="names of the dumps (default: their file names)")
    parser.add_argument("--out", type=Path, default=Path("report"), help="directory of the report")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="strict")
    parser.add_argument("--replicates", type=int, default=1000, help="bootstrap replicates")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap")
    parser.add_argument(
        "--annotations",
        type=Path,
        help="Annotations directory of demo scenes: compare hidden sides with the known truth",
    )
    args = parser.parse_args(argv)
    args.names = args.names or [path.stem for path in args.dumps]
    if len(args.names) != len(args.dumps):
        parser.error(f"{len(args.dumps)} dumps need as many --names, got {len(args.names)}.")
    if len(set(args.names)) != len(args.names):
        parser.error("the dumps have the same file name; tell them apart with --names.")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print where it is; bad input ends with one sentence."""
    args = parse_args(argv)
    try:
        dumps = {
            name: BoxPairs.load(path) for name, path in zip(args.names, args.dumps, strict=True)
        }
        paths = write_report(
            dumps,
            args.out,
            protocol=args.protocol,
            replicates=args.replicates,
            seed=args.seed,
            annotations=args.annotations,
        )
    except (OSError, ValueError) as error:
        print(f"analyze: {error}", file=sys.stderr)
        return 2
    print((args.out / "report.md").read_text())
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
