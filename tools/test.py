"""Test a checkpoint: mAP (11-point and area) and the tables of box uncertainty.

Example:
    python tools/test.py configs/voc_qfr.py work_dirs/voc_qfr/epoch_80.pth
    python tools/test.py configs/voc_qfr_vd.py CHECKPOINT --cfg-options model.test_cfg.mc_passes=20
"""

from __future__ import annotations

import argparse
import sys

import aqf_det  # noqa: F401
from aqf_det.engine import arguments, running


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", help="config file")
    parser.add_argument("checkpoint", help="checkpoint file")
    parser.add_argument("--work-dir", help="folder for logs and the metrics")
    parser.add_argument(
        "--dump",
        "--out",
        help="write the matched pairs here (.npz, for tools/analyze.py), or all predictions (.pkl)",
    )
    arguments.add_config_options(parser, "model.test_cfg.score_thr=0.1")
    arguments.add_launcher_options(parser)
    args = parser.parse_args(argv)
    arguments.set_local_rank(args)
    return args


def main(argv: list[str] | None = None) -> None:
    """Test as the command line says."""
    args = parse_args(argv)
    cfg = running.load_config(
        args.config, args.work_dir, args.cfg_options, args.launcher, args.data_root
    )
    running.test(cfg, args.checkpoint, args.dump)


if __name__ == "__main__":
    sys.exit(running.run_tool(main))
