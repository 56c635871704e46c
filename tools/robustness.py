"""Test a checkpoint on corrupted images: does it become less sure when it sees less?

Example:
    python tools/robustness.py configs/voc_qfr.py work_dirs/voc_qfr/epoch_80.pth \\
        --kinds blur noise fog --severities 1 3 5
    python tools/robustness.py CONFIG CHECKPOINT --cfg-options test_dataloader.dataset.indices=100

An interrupted sweep goes on when it is started again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import aqf_det  # noqa: F401
from aqf_det.datasets.corruptions import KINDS, MAX_SEVERITY
from aqf_det.engine import arguments, running
from aqf_det.robustness import Sweep, write_report
from aqf_det.study.progress import run_steps


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", help="config file; its test set is used")
    parser.add_argument("checkpoint", help="checkpoint file")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--severities",
        nargs="+",
        type=int,
        choices=range(1, MAX_SEVERITY + 1),
        default=[1, 3, 5],
        help="clean images are tested anyway",
    )
    parser.add_argument("--out", type=Path, help="folder (default: WORK_DIR/robustness)")
    parser.add_argument("--replicates", type=int, default=1000, help="bootstrap replicates")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 unless uncertainty grows with every kind"
    )
    arguments.add_config_options(parser, "model.test_cfg.mc_passes=10")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Test under every condition, print the table and where it is."""
    args = parse_args(argv)
    cfg = running.load_config(args.config, options=args.cfg_options, data_root=args.data_root)
    out = args.out or Path(cfg.work_dir) / "robustness"
    sweep = Sweep(cfg, args.checkpoint, out, args.kinds, args.severities)
    run_steps(sweep.steps())
    about = f"`{args.config}`, `{args.checkpoint}`"
    growth = write_report(sweep.measurements(), out, about, args.replicates)
    print(f"\n{(out / 'results.md').read_text()}")
    for name in ("results.md", "results.json", "robustness.png"):
        print(out / name)
    if args.check and any(item.verdict == "does not grow" for item in growth.values()):
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(running.run_tool(main))
