"""Speed of generating images beside zuko's NAF, and beside a full network pass per pixel.

    python tools/benchmark_generative.py --markdown docs/results/generative_speed.md

Digits: 64 variables, one autoregressive transform of the size of the digits experiment and a zuko
NAF with as many parameters. NAF inverts its transform by bisection, so it is timed on few points
and the time is scaled. MNIST: the PixelCNN of the MNIST experiment draws images with remembered
activations; without them every pixel takes one pass over the whole image, of which one is timed.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from benchmark_core import Run, interleaved, number, processor, publish

from aqf_core import AutoregressiveQuantileFlow
from aqf_core.experiments.comparison import table
from aqf_core.experiments.generative.jobs import RECIPES
from aqf_core.experiments.generative.models import matched_width, parameter_count

PIXELS = 64
FACTOR = 100  # NAF must take this many times longer


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=10_000, help="digits per run")
    parser.add_argument("--naf-points", type=int, default=500, help="digits drawn by zuko's NAF")
    parser.add_argument("--images", type=int, default=100, help="MNIST images per run")
    parser.add_argument("--hidden", type=int, nargs="+", help="layers of the digits flow")
    parser.add_argument("--side", type=int, default=28, help="of the MNIST images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all measurements here")
    parser.add_argument("--markdown", type=Path, help="write a page with the tables here")
    options = parser.parse_args(arguments)
    for name in ("points", "naf_points", "images", "side", "threads", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1.")
    return options


def measure_digits(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds for `points` digits, by transformer, and for zuko's NAF of the same size."""
    import zuko

    recipe = RECIPES["digits"].architecture
    hidden = tuple(options.hidden or recipe.hidden)
    flows = {
        name: AutoregressiveQuantileFlow(
            PIXELS,
            transformer=name,
            hidden=hidden,
            conditioner_options=recipe.conditioner_options,
        )
        for name in ("affine", "spline", "deep_sigmoid")
    }

    def naf(width: int) -> torch.nn.Module:
        sizes = (width,) * len(hidden)
        flow: torch.nn.Module = zuko.flows.NAF(PIXELS, transforms=1, hidden_features=sizes)
        return flow

    target = parameter_count(flows["spline"])
    runs: dict[str, Run] = {
        name: lambda flow=flow: flow.sample(options.points) for name, flow in flows.items()
    }
    spent = interleaved(runs, options.repeats)
    rows = [
        {"method": f"AQF, {name}", "parameters": parameter_count(flow), "seconds": spent[name]}
        for name, flow in flows.items()
    ]
    other = naf(matched_width(lambda width: parameter_count(naf(width)), target))
    with torch.no_grad():
        few = interleaved({"naf": lambda: other().sample((options.naf_points,))}, 1)["naf"]
    scaled = few * options.points / options.naf_points
    rows.append(
        {"method": "zuko NAF, scaled", "parameters": parameter_count(other), "seconds": scaled}
    )
    return rows


def measure_images(options: argparse.Namespace) -> dict[str, float]:
    """Seconds for `images` images with remembered activations, and for a full pass per pixel."""
    recipe = RECIPES["mnist"].architecture
    shape = (1, options.side, options.side)
    flow = AutoregressiveQuantileFlow(
        shape,
        transformer=recipe.transformer,
        conditioner="pixelcnn",
        hidden=recipe.hidden,
        conditioner_options=recipe.conditioner_options,
    )
    image = torch.zeros(options.images, flow.features)
    with torch.no_grad():
        runs: dict[str, Run] = {
            "incremental": lambda: flow.sample(options.images),
            "pass": lambda: flow.conditioner(image),
        }
        spent = interleaved(runs, options.repeats)
    return spent | {"passes": flow.features * spent["pass"]}


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    digits, images = report["digits"], report["images"]
    slowest = digits[-1]["seconds"]
    rows = [
        [
            row["method"],
            f"{row['parameters']:,}",
            number(row["seconds"]),
            f"{slowest / row['seconds']:,.0f}" if row is not digits[-1] else "1",
        ]
        for row in digits
    ]
    met = all(slowest / row["seconds"] > FACTOR for row in digits[:-1])
    count, side = report["image_count"], report["side"]
    ratio = images["passes"] / images["incremental"]
    return f"""# Speed of generating images

Machine: {report["machine"]}.

{report["points"]:,} digits of 8x8 pixels; zuko's NAF was timed on {
        report["naf_points"]
    } and scaled:

{table(["method", "parameters", "seconds", "times faster than NAF"], rows)}

Goal, below 1/{FACTOR} of the time of NAF: {"met" if met else "**missed**"}.

{count} images of {side}x{side} by the PixelCNN of the MNIST experiment:

{
        table(
            ["way", "seconds"],
            [
                ["remembered activations", number(images["incremental"])],
                ["one pass over the images", number(images["pass"])],
                [f"{side * side} passes, one per pixel", number(images["passes"])],
            ],
        )
    }

Drawing with remembered activations is {ratio:.0f} times faster than a pass per pixel.

```bash
python tools/benchmark_generative.py --markdown docs/results/generative_speed.md
```
"""


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    try:
        import zuko
    except ImportError:
        print("This benchmark compares with zuko: pip install zuko==1.6.0", file=sys.stderr)
        return 2
    report = {
        "machine": f"{processor()}, {options.threads} threads, torch {torch.__version__}, "
        f"zuko {zuko.__version__}, Python {platform.python_version()}",
        "points": options.points,
        "naf_points": options.naf_points,
        "image_count": options.images,
        "side": options.side,
        "digits": measure_digits(options),
        "images": measure_images(options),
    }
    publish(report, page(report), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
