"""Train, calibrate, test and compare every kind of branch on one frozen detector.

Example:
    python tools/train.py configs/voc320_gaussian.py
    python tools/run_voc.py configs/voc320_gaussian.py work_dirs/voc320_gaussian/epoch_30.pth

Run again after an interruption: finished work is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path

from mmengine.config import DictAction

import aqf_det  # noqa: F401
from aqf_core.experiments.comparison import hand_written
from aqf_det.engine import running
from aqf_det.study import Study, StudySize
from aqf_det.study.finish import finishing_steps
from aqf_det.study.progress import duration, run_steps


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", help="the detector's config; val_dataloader reads unseen images")
    parser.add_argument("checkpoint", help="the detector's weights")
    parser.add_argument("--out", type=Path, help="folder (default: WORK_DIR/study)")
    parser.add_argument("--held-out", help="split of the unseen images (default: that of val)")
    parser.add_argument(
        "--more",
        nargs="+",
        default=[],
        metavar="CHECKPOINT",
        help="the same detector trained again with other seeds: their ensemble is measured too",
    )
    parser.add_argument("--seeds", type=int, default=3, help="branches of each kind")
    parser.add_argument(
        "--pretraining", type=int, help="training steps of a branch on the detector's own images"
    )
    parser.add_argument("--steps", type=int, help="its further steps on unseen images")
    parser.add_argument(
        "--markdown", type=Path, help="also write the report to this file, above its notes"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument(
        "--data-root", help="folder that holds VOCdevkit or demo (default: $AQF_DATA or data)"
    )
    parser.add_argument(
        "--cfg-options", nargs="+", action=DictAction, help="override config entries"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the study and print its report."""
    args = parse_args(argv)
    import torch

    torch.set_num_threads(args.threads)
    cfg = running.load_config(args.config, options=args.cfg_options, data_root=args.data_root)
    size = StudySize(seeds=args.seeds)
    given = {name: getattr(args, name) for name in ("steps", "pretraining") if getattr(args, name)}
    size = dataclasses.replace(size, **given)
    out = args.out or Path(cfg.work_dir) / "study"
    study = Study(cfg, args.checkpoint, out, size, args.held_out, tuple(args.more))
    command = shlex.join(["python", "tools/run_voc.py", *(argv or sys.argv[1:])])
    taken = run_steps([*study.steps(), *finishing_steps(study, command)])
    text = (out / "results.md").read_text()
    if args.markdown is not None:
        args.markdown.write_text(text + hand_written(args.markdown))
    print(f"\nFinished in {duration(taken)}.\n\n{text}\n{out}")


if __name__ == "__main__":
    sys.exit(running.run_tool(main))
