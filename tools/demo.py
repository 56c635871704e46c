"""Train a small detector on generated scenes; compare Gaussian boxes with quantile flows.

Run again after an interruption: finished steps are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("work_dirs/demo"), help="folder for everything"
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: all cores)")
    parser.add_argument(
        "--gallery-for-docs",
        type=Path,
        nargs="?",
        const=ROOT / "docs/images/demo_boxes.png",
        metavar="PNG",
        help="then also write a small collage (default docs/images/demo_boxes.png)",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    args = parse_args(argv)
    print("Loading PyTorch and MMDetection ...", flush=True)
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    from aqf_det.demo import Demo, run_steps
    from aqf_det.demo.gallery import write_collage
    from aqf_det.study.progress import duration

    demo = Demo(args.out, ROOT / "configs")
    try:
        taken = run_steps(demo.steps())
    except KeyboardInterrupt:
        print("Stopped. Run the same command again to go on from here.", file=sys.stderr)
        return 130
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\nFinished in {duration(taken)}.\n")
    print((args.out / "results.md").read_text())
    print("Written:")
    for name, path in demo.outputs().items():
        print(f"  {name:34}{path}")
    if args.gallery_for_docs is not None:
        size = write_collage(demo, args.gallery_for_docs)
        print(f"  {'collage':34}{args.gallery_for_docs} ({size / 1000:.0f} kB)")
    numbers = json.loads((args.out / "results.json").read_text())
    print("\n" + numbers["verdict"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
