"""Calibrate a detector on held-out images: a new checkpoint whose distributions keep their word.

Example:
    python tools/calibrate.py configs/voc_qfr.py work_dirs/voc_qfr/epoch_80.pth \\
        --ann-file VOC2007/ImageSets/Main/val.txt --sizes 32 96
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import aqf_det  # noqa: F401
from aqf_det.calibration.report import calibration_table
from aqf_det.calibration.run import calibrate
from aqf_det.engine import arguments, running


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", help="config file; its val_dataloader reads the held-out images")
    parser.add_argument("checkpoint", help="checkpoint file")
    parser.add_argument("--out", help="new checkpoint (default: CHECKPOINT with _calibrated)")
    parser.add_argument("--ann-file", help="another split or annotation file of the val data set")
    parser.add_argument(
        "--kind",
        choices=["auto", "isotonic", "spline", "conformal"],
        default="auto",
        help="how levels are repaired (auto: isotonic from 1000 boxes, else a spline)",
    )
    parser.add_argument(
        "--sizes",
        type=float,
        nargs="*",
        default=[],
        help="repair boxes of different sizes (sqrt of the area, px) separately, e.g. 32 96",
    )
    parser.add_argument("--folds", type=int, default=5, help="folds of the printed check")
    arguments.add_config_options(parser, "model.test_cfg.mc_passes=10")
    args = parser.parse_args(argv)
    if args.out is None:
        path = Path(args.checkpoint)
        args.out = str(path.with_name(f"{path.stem}_calibrated.pth"))
    return args


def main(argv: list[str] | None = None) -> None:
    """Calibrate, print what it changes for images left out of the fit, and save."""
    args = parse_args(argv)
    cfg = running.load_config(args.config, options=args.cfg_options, data_root=args.data_root)
    result, edges = calibrate(
        cfg,
        args.checkpoint,
        args.out,
        ann_file=args.ann_file,
        kind=args.kind,
        edges=args.sizes,
        folds=args.folds,
    )
    if len(edges) < len(args.sizes):
        print(f"too few boxes for all sizes; used: {edges or 'one group'}\n")
    print(f"Calibration by other images ({args.folds} folds):\n")
    print(calibration_table(result, edges))
    print(f"\n{args.out}")


if __name__ == "__main__":
    sys.exit(running.run_tool(main))
