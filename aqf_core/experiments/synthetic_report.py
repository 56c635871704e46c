"""The page of the synthetic experiments: distance to the truth, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..datasets import NOISES, Chain
from .comparison import mean_of, number, paired, table
from .published import CALIBRATION_1D, CHAINS, NOISE_1D
from .records import Record
from .synthetic import CURVE, chain_methods, noise_methods
from .tabular_figures import save_figure, subplots

__all__ = ["synthetic_page", "write_report"]

Results = Sequence[Record]
TRUTH, FLOW = "truth", "aqf"


def write_report(results: Results, path: Path, command: str) -> list[Path]:
    """Write the page and its figure beside it; returns what was written.

    Args:
        results: records of `noise_jobs` and `chain_jobs`.
        path: of the page; the figure has its name and a suffix.
        command: shown on the page.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written, figure = [path], path.with_name(f"{path.stem}_intervals.png")
    if any("interval" in r for r in results):
        draw_intervals(results, figure)
        written.append(figure)
    path.write_text(synthetic_page(results, command, [f.name for f in written[1:]]))
    return written


def synthetic_page(results: Results, command: str, figures: Sequence[str] = ()) -> str:
    """The page as Markdown."""
    count = len({r["seed"] for r in results})
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    parts = [
        f"""# Distance to a known truth

Means over {seeds}; every method, and the truth, sees the same rows. "Above truth" is the mean
paired difference with its standard error over seeds; the paper's is from its own tables. All models
are the same network with another head.

```bash
{command}
```"""
    ]
    noise = [r for r in results if r["dataset"] in NOISES]
    chains = [r for r in results if r["dataset"] not in NOISES]
    parts += [_noise(noise)] if noise else []
    parts += [f"![80 % intervals]({name})" for name in figures]
    parts += [_chains(chains)] if chains else []
    return "\n\n".join(parts) + "\n"


def _of(results: Results, dataset: str, method: str) -> list[Record]:
    return [r for r in results if r["dataset"] == dataset and r["method"] == method]


def _names(results: Results) -> list[str]:
    return list(dict.fromkeys(r["dataset"] for r in results))


def _labels(dataset: str) -> dict[str, str]:
    one = dataset in NOISES
    count = 0 if one else int(dataset.removesuffix("-D"))
    methods = noise_methods(dataset, "fast") if one else chain_methods(Chain(count), "fast")
    return {m.name: m.label for m in methods}


def _above(value: float, truth: float) -> str:
    return number(value - truth, sign=True)


def _nearest(results: Results, dataset: str, entry: str) -> str:
    """Which method is nearest to the truth, in one sentence."""
    labels = _labels(dataset)
    truth = _of(results, dataset, TRUTH)
    gaps = {
        name: paired(own, truth, entry)
        for name in labels
        if name != TRUTH and (own := _of(results, dataset, name))
    }
    if not gaps:
        return ""
    best = min(gaps, key=lambda name: gaps[name].mean)
    sentence = f"Nearest to the truth: {labels[best]} ({gaps[best].shown(4)})"
    if best == FLOW or FLOW not in gaps:
        return f"{sentence}."
    return f"{sentence}; {labels[FLOW]} is at {gaps[FLOW].shown(4)}."


def _noise(results: Results) -> str:
    sizes = results[0]
    parts = [
        f"""## One target, three kinds of noise

f(x') = sin(x'/2) + x'/10, {sizes["train"]:,} rows to learn from, {sizes["test"]:,} to test.
The paper does not say how many rows it had, where x' lies, nor the constant of the Poisson rate: x'
is uniform on [-10, 10], the constant 2.75, which gives the truth the published CRPS of .898.
Beta(2, 5) as it is written has a true CRPS of .090, the published table says .443: five times the
noise gives .448, so that is "beta" here, and the noise as it is written is "beta-unit". Observed
shares below the quantiles of counts lie above the level even for the true quantiles, because counts
come in steps."""
    ]
    for dataset in _names(results):
        truth = _of(results, dataset, TRUTH)
        paper = NOISE_1D.get(dataset, {})
        calibration = CALIBRATION_1D.get(dataset, {})
        rows = []
        for name, label in _labels(dataset).items():
            own = _of(results, dataset, name)
            if not own:
                continue
            observed = np.mean([r["observed"] for r in own], axis=0)
            published = "-"
            if name in paper and name != TRUTH:
                published = _above(paper[name][0], paper[TRUTH][0])
            rows.append(
                [
                    label,
                    number(mean_of(own, "check_score")),
                    "" if name == TRUTH else paired(own, truth, "check_score").shown(4),
                    published,
                    number(mean_of(own, "crps")),
                    number(100 * mean_of(own, "calibration_mae"), 2),
                    number(calibration.get(name, float("nan")), 2),
                    number(mean_of(own, "rmse")),
                    " / ".join(number(observed[k]) for k in (24, 49, 74)),
                ]
            )
        header = ["method", "check score", "above truth", "published, above truth", "CRPS"]
        header += ["calibration error, %", "published, %", "RMSE", "share below .25 / .5 / .75"]
        parts.append(
            f"### {dataset}: {NOISES[dataset].formula}\n\n{table(header, rows)}\n\n"
            f"{_nearest(results, dataset, 'check_score')}"
        )
    parts.append(
        "Published shares below the quantiles .25 / .5 / .75, without a name of the data: AQF "
        ".236 / .493 / .746, Gaussian .342 / .510 / .684; RMSE 1.017 and 1.016."
    )
    return "\n\n".join(parts)


def _chains(results: Results) -> str:
    sizes = results[0]
    parts = [
        f"""## Chains of targets

x_0 = 5 sin(x'/3) + x' + N(0, 1), then every target from the one before in the same way; x' is
uniform on [-10, 10], {sizes["train"]:,} rows to learn from (the paper says neither),
{sizes["test"]:,} to test, {sizes["samples"]} joint samples for each. Marginal: mean CRPS of the
targets. Joint: energy score divided by the root of the number of targets, which is of the size of
the published figures. Both by the fair estimator."""
    ]
    for dataset in _names(results):
        truth = _of(results, dataset, TRUTH)
        paper = CHAINS.get(dataset, {})
        rows = []
        for name, label in _labels(dataset).items():
            own = _of(results, dataset, name)
            if not own:
                continue
            cells = [label]
            for k, entry in enumerate(("crps", "energy")):
                published = "-"
                if name in paper and name != TRUTH:
                    published = _above(paper[name][k], paper[TRUTH][k])
                cells.append(number(mean_of(own, entry)))
                cells.append("" if name == TRUTH else str(paired(own, truth, entry)))
                cells.append(published)
            rows.append([*cells, number(mean_of(own, "fit_seconds"), 1)])
        header = ["method", "marginal", "above truth", "published", "joint", "above truth"]
        header += ["published", "fit, s"]
        parts.append(
            f"### {dataset}\n\n{table(header, rows)}\n\n{_nearest(results, dataset, 'energy')}"
        )
    return "\n\n".join(parts)


def draw_intervals(results: Results, path: Path) -> None:
    """80 % intervals of AQF and the Gaussian against the true ones, for the first seed."""
    shown = [
        (dataset, name)
        for dataset in _names(results)
        if dataset in NOISES
        for name in ("aqf", "gaussian")
        if _of(results, dataset, name)
    ]
    figure, axes = subplots(len(shown))
    for (dataset, name), ax in zip(shown, axes, strict=True):
        first = min(_of(results, dataset, name), key=lambda r: r["seed"])
        low, high = np.array(first["interval"]).T
        ax.fill_between(CURVE, low, high, color="#9db8d2", label="predicted 80 %")
        true_low, true_high = NOISES[dataset].quantiles(CURVE[:, None], [0.1, 0.9]).T
        for k, edge in enumerate((true_low, true_high)):
            ax.plot(CURVE, edge, color="#b03030", linewidth=1, label=None if k else "true 80 %")
        ax.set_title(f"{dataset}, {_labels(dataset)[name]}")
        ax.set_xlabel("x'")
    axes[0].legend(fontsize=7)
    save_figure(figure, path)
