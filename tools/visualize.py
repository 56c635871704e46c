"""Draw the boxes of a detector on pictures, with the quantiles of every side."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", nargs="+", type=Path, help="pictures, or folders of pictures")
    parser.add_argument("--config", required=True, help="config of the detector")
    parser.add_argument("--checkpoint", required=True, help="weights written by tools/train.py")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/visualize"), help="folder for the drawn pictures"
    )
    parser.add_argument(
        "--score-threshold", type=float, default=0.3, help="boxes below are not drawn"
    )
    parser.add_argument("--no-quantiles", action="store_true", help="draw the point boxes only")
    parser.add_argument(
        "--levels",
        type=float,
        nargs="+",
        help="also write predictions.json with the quantiles of every side at these levels",
    )
    parser.add_argument("--mc-passes", type=int, help="passes of MC dropout (for *_vd configs)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: a GPU if there is one)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Draw every picture; returns 1 when some could not be read, 2 when nothing could be done."""
    args = parse_args(argv)
    from aqf_core.errors import AQFError
    from aqf_det.inference import (
        DEFAULT_LEVELS,
        CheckpointKindError,
        CorruptSampleError,
        QuantileInferencer,
        find_images,
    )

    try:
        pictures = [p for given in args.inputs for p in _pictures(given, find_images)]
        inferencer = QuantileInferencer(args.config, args.checkpoint, args.device)
        options = {"levels": args.levels or DEFAULT_LEVELS, "mc_passes": args.mc_passes}
        predictions, failed = [], 0
        targets = _targets(pictures, args.out)
        for number, (picture, target) in enumerate(zip(pictures, targets, strict=True), 1):
            try:
                found = inferencer(picture, score_threshold=args.score_threshold, **options)
            except CorruptSampleError as error:
                failed += 1
                print(f"[{number}/{len(pictures)}] left out: {error}", file=sys.stderr)
                continue
            found.save(
                target, score_threshold=args.score_threshold, quantiles=not args.no_quantiles
            )
            predictions.append(found.to_dict())
            print(f"[{number}/{len(pictures)}] {target} ({len(found)} boxes)", flush=True)
    except (AQFError, CheckpointKindError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.levels and predictions:
        target = args.out / "predictions.json"
        target.write_text(json.dumps(predictions, indent=1) + "\n")
        print(target)
    return 1 if failed else 0


def _pictures(given: Path, find_images) -> list[Path]:  # type: ignore[no-untyped-def]
    if given.is_dir():
        return find_images(given)
    if not given.is_file():
        raise FileNotFoundError(f"there is no picture or folder {given}.")
    return [given]


def _targets(pictures: list[Path], out: Path) -> list[Path]:
    """A file for each drawn picture: no two alike, and none of them a picture that was given."""
    taken = {picture.resolve() for picture in pictures}
    targets = []
    for picture in pictures:
        target, number = out / f"{picture.stem}.png", 1
        while target.resolve() in taken:
            number += 1
            target = out / f"{picture.stem}_{number}.png"
        taken.add(target.resolve())
        targets.append(target)
    return targets


if __name__ == "__main__":
    sys.exit(main())
