"""The demo's tables: every variant on the same boxes, and QFR against the best Gaussian."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..evaluation import (
    BoxPairs,
    Estimate,
    HiddenSides,
    PairedDifference,
    Summary,
    hidden_sides,
    paired_bootstrap,
    paired_hidden_crps,
    summarise,
)
from ..evaluation.tables import differences_table, markdown_table
from ..study.variants import Variant
from .plan import DETECTOR, QFR, VARIANTS

if TYPE_CHECKING:
    from .run import Demo

COMPARED = ("crps", "calibration_mae", "winkler_90", "nll", "energy")


@dataclass(frozen=True)
class Evaluated:
    """A variant's test results.

    Attributes:
        variant: Which one.
        pairs: Matched detections.
        summary: Scores of all pairs, strict protocol.
        hidden: Hidden sides, predicted against known.
        hidden_summary: Their means.
        mean_ap: mAP50 of the detector, area under the precision-recall curve.
    """

    variant: Variant
    pairs: BoxPairs
    summary: Summary
    hidden: HiddenSides
    hidden_summary: dict[str, Estimate]
    mean_ap: float

    @property
    def crps(self) -> float:
        """CRPS of all sides, px."""
        return self.summary.overall.metrics["crps"].value


def evaluate(demo: Demo, variant: Variant) -> Evaluated:
    """Read a tested variant."""
    pairs = BoxPairs.load(demo.pairs_file(variant))
    hidden = hidden_sides(pairs, demo.data / "Annotations")
    metrics = json.loads(demo.metrics_file(variant).read_text())
    return Evaluated(
        variant=variant,
        pairs=pairs,
        summary=summarise(pairs),
        hidden=hidden,
        hidden_summary=hidden.summary(),
        mean_ap=metrics["area/AP50"],
    )


@dataclass(frozen=True)
class Comparison:
    """QFR against the Gaussian of lowest CRPS, on the same ground truths."""

    best_gaussian: Evaluated
    qfr: Evaluated
    differences: dict[str, PairedDifference]
    hidden: PairedDifference


def compare(results: Mapping[str, Evaluated], demo: Demo) -> Comparison:
    """Find the best Gaussian and compare QFR with it."""
    gaussians = [item for item in results.values() if item.variant.gaussian]
    best = min(gaussians, key=lambda item: item.crps)
    qfr = results[QFR.name]
    return Comparison(
        best_gaussian=best,
        qfr=qfr,
        differences=paired_bootstrap(qfr.pairs, best.pairs, COMPARED),
        hidden=paired_hidden_crps(qfr.pairs, best.pairs, demo.data / "Annotations"),
    )


def _with_interval(estimate: Estimate, digits: int = 2) -> str:
    text = f"{estimate.value:.{digits}f}"
    if np.isfinite(estimate.low):
        text += f" [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
    return text


def variants_table(results: Mapping[str, Evaluated]) -> str:
    """One row per variant."""
    header = ["", "CRPS px", "cal. MAE", "cover 50 %", "cover 90 %", "mAP50", "CRPS hidden px"]
    header += ["quantile error px", "relative"]
    rows = []
    for item in results.values():
        metrics, hidden = item.summary.overall.metrics, item.hidden_summary
        rows.append(
            [
                item.variant.title,
                _with_interval(metrics["crps"], 3),
                f"{metrics['calibration_mae'].value:.3f}",
                f"{metrics['picp_50'].value:.3f}",
                f"{metrics['picp_90'].value:.3f}",
                f"{item.mean_ap:.3f}",
                _with_interval(hidden["crps_hidden"]),
                _with_interval(hidden["quantile_error_px"]),
                f"{hidden['quantile_error_share'].value:.0%}",
            ]
        )
    return markdown_table(header, rows)


def verdict(comparison: Comparison) -> str:
    """One sentence: did QFR beat the best Gaussian?"""
    crps = comparison.differences["crps"]
    relative = crps.difference / crps.second
    best = comparison.best_gaussian.variant.title
    if crps.high < 0:
        word = "beats"
    elif crps.low > 0:
        word = "loses to"
    else:
        word = "cannot be told from"
    return (
        f"QFR {word} the best Gaussian ({best}) on CRPS: {crps.difference:+.3f} px "
        f"({relative:+.1%}), 95 % interval [{crps.low:+.3f}, {crps.high:+.3f}] px over "
        f"{crps.n_images} images."
    )


def markdown(results: Mapping[str, Evaluated], comparison: Comparison) -> str:
    """The whole report."""
    qfr, best = comparison.qfr, comparison.best_gaussian
    oracle = qfr.hidden_summary["crps_oracle"].value
    error = {
        name: f"{item.hidden_summary['quantile_error_share'].value:.0%}"
        for name, item in (("qfr", qfr), ("best", best))
    }
    hidden = comparison.hidden
    return f"""\
# Demo: boxes that know how sure they are

{verdict(comparison)}

{len(qfr.pairs.image_ids)} test images, {qfr.summary.overall.n_pairs} matched objects,
{len(qfr.hidden)} of them with a side hidden behind a board. All rows share one frozen detector: the
same boxes, scores and mAP. Brackets are 95 % bootstrap intervals over images.

{variants_table(results)}

CRPS, calibration and coverage are those of all four sides of all matched boxes. The last three
columns look at hidden sides only, whose true distribution is known: the CRPS there (the true
distribution itself scores {oracle:.2f} px), the mean distance of predicted from true quantiles
.01 ... .99, and the same relative to the spread of the truth.

## QFR minus {best.variant.title}

{differences_table(comparison.differences, "QFR", "best Gaussian")}

On hidden sides alone: CRPS {hidden.difference:+.3f} px, 95 % interval [{hidden.low:+.3f},
{hidden.high:+.3f}] px. QFR's quantiles there are off by {error["qfr"]} of the spread of the truth,
the Gaussian's by {error["best"]}.
"""


def as_json(results: Mapping[str, Evaluated], comparison: Comparison) -> dict[str, Any]:
    """All numbers of the report."""
    return {
        "verdict": verdict(comparison),
        "variants": {
            name: {
                "title": item.variant.title,
                "mAP50": item.mean_ap,
                "scores": item.summary.to_dict(),
                "hidden_sides": {key: asdict(v) for key, v in item.hidden_summary.items()},
            }
            for name, item in results.items()
        },
        "best_gaussian": comparison.best_gaussian.variant.name,
        "qfr_minus_best_gaussian": {
            **{name: item.to_dict() for name, item in comparison.differences.items()},
            "crps_hidden": comparison.hidden.to_dict(),
        },
    }


def write_report(demo: Demo, report: Callable[[float], None]) -> None:
    """Write the pictures, ``results.md`` and, last, ``results.json``."""
    from .gallery import draw_gallery, draw_hidden_sides

    results = {}
    for i, variant in enumerate(VARIANTS):
        results[variant.name] = evaluate(demo, variant)
        report(0.4 * (i + 1) / len(VARIANTS))
    comparison = compare(results, demo)
    report(0.5)
    gaussian = comparison.best_gaussian.variant
    draw_gallery(demo, gaussian if gaussian is not DETECTOR else DETECTOR)
    report(0.9)
    draw_hidden_sides(comparison, demo.out / "gallery" / "hidden_sides.png")
    (demo.out / "results.md").write_text(markdown(results, comparison))
    numbers = json.dumps(as_json(results, comparison), indent=2)
    (demo.out / "results.json").write_text(numbers + "\n")
