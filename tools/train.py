"""Train a detector: both stages of its recipe in one resumable run.

Example:
    python tools/train.py configs/voc_qfr.py --work-dir work_dirs/voc_qfr
    python tools/train.py configs/voc_qfr.py --resume
    torchrun --nproc_per_node=4 tools/train.py configs/voc_qfr.py --launcher pytorch --auto-scale-lr
"""

from __future__ import annotations

import argparse
import sys

import aqf_det  # noqa: F401
from aqf_det.engine import arguments, running


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line (the flags of mmdet's own train.py, and --data-root)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", help="config file")
    parser.add_argument("--work-dir", help="folder for logs and checkpoints")
    parser.add_argument("--amp", action="store_true", help="train in mixed precision")
    parser.add_argument(
        "--auto-scale-lr", action="store_true", help="scale the learning rate with the batch size"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        help="continue from this checkpoint, or from the latest in the work dir",
    )
    arguments.add_config_options(parser, "train_dataloader.batch_size=4")
    arguments.add_launcher_options(parser)
    args = parser.parse_args(argv)
    arguments.set_local_rank(args)
    return args


def main(argv: list[str] | None = None) -> None:
    """Train as the command line says."""
    args = parse_args(argv)
    cfg = running.load_config(
        args.config, args.work_dir, args.cfg_options, args.launcher, args.data_root
    )
    if args.amp:
        running.enable_amp(cfg)
    if args.auto_scale_lr:
        running.enable_auto_scale_lr(cfg)
    if args.resume is not None:
        running.set_resume(cfg, args.resume)
    running.train(cfg)


if __name__ == "__main__":
    sys.exit(running.run_tool(main))
