"""Speed of the forecasters beside GluonTS's DeepAR, as ratios within one run.

    python tools/benchmark_timeseries.py --markdown docs/results/timeseries_speed.md

All networks are LSTMs of 3 x 40 on windows of 168 + 24 hours with an embedding of 20, lags of 1,
24, 48 and 168 hours and 13 time features. Sampling draws joint paths of one day for many windows,
GluonTS in the faster of several batch sizes; a training step is forward, backward and Adam on a
batch that is already there. Competitors take turns, after a first round that does not count, and
the fastest repeat does.
Without GluonTS only ours are timed.
"""

from __future__ import annotations

import argparse
import platform
import warnings
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark_core import Run, goal_lines, interleaved, number, processor, publish, training_step

from aqf_core.datasets import simulate_loads
from aqf_core.forecasting import (
    DeepARForecaster,
    Forecaster,
    MQRNNForecaster,
    QuantileFlowForecaster,
)
from aqf_core.forecasting.training import scaled_loss

SERIES, CONTEXT, HORIZON, LAGS = 327, 168, 24, (24, 48, 168)
PEER, PEER_BATCHES = "GluonTS DeepAR", (16, 64)
STEP_REPEATS = 15
FORECASTERS: dict[str, type[Forecaster]] = {
    "AQF": QuantileFlowForecaster,
    "DeepAR": DeepARForecaster,
    "MQ-RNN": MQRNNForecaster,
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--paths", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="windows per training step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="of sampling")
    parser.add_argument("--json", type=Path, help="write all measurements here")
    parser.add_argument("--markdown", type=Path, help="write a page with the tables here")
    return parser.parse_args(arguments)


def ours(kind: type[Forecaster], options: argparse.Namespace) -> tuple[Run, Run]:
    """Sampling and a training step of one of our forecasters."""
    loads = simulate_loads(SERIES, 24 * 21)
    model = kind(context=CONTEXT, lags=LAGS, steps=1, recalibrate="none", random_state=0).fit(loads)
    fitted = model.fitted_
    index = np.arange(options.windows) % SERIES
    origins = fitted.data.lengths[index]
    network = fitted.network
    batch = fitted.source(fitted.data).batch(index[: options.batch], origins[: options.batch] - 24)

    def sample() -> Any:
        network.eval()
        return fitted.sample(fitted.data, index, origins, options.paths, 0)

    step = training_step(network, lambda: scaled_loss(network, network.train()(batch), batch))
    return sample, step


def peer(options: argparse.Namespace) -> tuple[dict[str, Run], Run]:
    """Sampling in several batch sizes and a training step of GluonTS's DeepAR."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluonts.torch.distributions import NormalOutput
        from gluonts.torch.model.deepar import DeepARModel

    model = DeepARModel(
        "h", CONTEXT, HORIZON, num_feat_dynamic_real=13, cardinality=[SERIES],
        embedding_dimension=[20], num_layers=3, hidden_size=40, lags_seq=[1, *LAGS],
        distr_output=NormalOutput(),
    )  # fmt: skip

    def inputs(size: int) -> dict[str, torch.Tensor]:
        shapes = {name: spec.shape[1:] for name, spec in model.describe_inputs().items()}
        numbers = {name: torch.rand(size, *shape) for name, shape in shapes.items()}
        numbers["feat_static_cat"] = (torch.arange(size) % SERIES)[:, None]
        return numbers

    def sampler(size: int) -> Run:
        chunks = [inputs(len(rows)) for rows in torch.arange(options.windows).split(size)]

        def run() -> None:
            model.eval()
            with torch.no_grad():
                for chunk in chunks:
                    model(**chunk, num_parallel_samples=options.paths)

        return run

    fixed = inputs(options.batch)
    target = {
        "future_target": torch.rand(options.batch, HORIZON),
        "future_observed_values": torch.ones(options.batch, HORIZON),
    }
    step = training_step(model, lambda: model.train().loss(**fixed, **target).mean())
    return {f"GluonTS {size}": sampler(size) for size in PEER_BATCHES}, step


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of sampling and of training steps."""
    torch.manual_seed(0)
    sampling, steps = {}, {}
    for name, kind in FORECASTERS.items():
        sampling[name], steps[name] = ours(kind, options)
    if util.find_spec("gluonts"):
        several, steps[PEER] = peer(options)
        sampling |= several
    times = interleaved(sampling, options.repeats)
    others = [times.pop(name) for name in list(times) if name.startswith("GluonTS")]
    if others:
        times[PEER] = min(others)
    return {"sampling": times, "steps": interleaved(steps, STEP_REPEATS)}


def goals(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What was wanted and what was measured, as far as GluonTS took part."""
    sampling, steps = report["sampling"], report["steps"]
    rows = [("training step, AQF / our DeepAR", steps["AQF"] / steps["DeepAR"], 1.3)]
    if PEER in steps:
        rows.append((f"training step, AQF / {PEER}", steps["AQF"] / steps[PEER], 1.3))
        rows.append((f"sampling, AQF / {PEER}", sampling["AQF"] / sampling[PEER], 1.0))
    return [
        {"what": what, "measured": ratio, "goal": f"<= {bound}", "met": ratio <= bound}
        for what, ratio, bound in rows
    ]


def page(report: dict[str, Any]) -> str:
    """The page as Markdown."""
    lines = [
        "# Speed of the forecasters",
        "",
        f"Machine: {report['machine']}, {report['threads']} threads. LSTM 3 x 40, windows of "
        f"{CONTEXT} + {HORIZON} hours, {report['paths']} paths for each of {report['windows']:,} "
        f"windows, training batches of {report['batch']}.",
        "",
        *goal_lines(report["goals"]),
    ]
    lines += ["", "| | sampling, s | training step, ms |", "|---|---|---|"]
    for name, seconds in report["sampling"].items():
        step = 1e3 * report["steps"][name]
        lines.append(f"| {name} | {number(seconds)} | {step:.0f} |")
    command = f"python tools/benchmark_timeseries.py --repeats {report['repeats']}"
    command += " --markdown docs/results/timeseries_speed.md"
    return "\n".join([*lines, "", "```bash", command, "```"]) + "\n"


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    report = measure(options)
    kept = ("windows", "paths", "batch", "threads", "repeats")
    report |= {name: getattr(options, name) for name in kept}
    report["goals"] = goals(report)
    report["machine"] = (
        f"{processor()}, torch {torch.__version__}, Python {platform.python_version()}"
    )
    publish(report, page(report), options)


if __name__ == "__main__":
    main()
