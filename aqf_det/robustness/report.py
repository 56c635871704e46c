"""Table, numbers and picture of a sweep over corruptions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aqf_core.errors import DomainError, LevelError

from ..evaluation import Estimate
from ..evaluation.figures import severity_figure
from ..evaluation.tables import interval, markdown_table, number
from .growth import ERROR, WIDTH, Growth, growth_of
from .sweep import CLEAN, Measurement

# Columns of the table: title, and where the number comes from.
COLUMNS = {
    "std px": "std",
    "MPIW 90 % px": "uncertainty/mpiw_90",
    "CRPS px": "uncertainty/crps",
    "cal. MAE": "uncertainty/calibration_mae",
    "PICP 90 %": "uncertainty/picp_90",
    "PDQ": "pdq/pdq",
    "D-ECE": "dece/confidence",
    "mAP": "mAP",
}


def write_report(
    measurements: Sequence[Measurement],
    out: str | Path,
    about: str = "",
    replicates: int = 1000,
    seed: int = 0,
) -> dict[str, Growth]:
    """Write ``results.md``, ``results.json`` and ``robustness.png``; returns the growth per kind.

    Args:
        measurements: Clean images first, severities of a kind in rising order.
        out: Folder, created if needed.
        about: What was tested, for the head of the report.
        replicates: Bootstrap replicates over images.
        seed: Seed of the bootstrap.
    """
    clean, kinds = _sorted(measurements)
    growth = {
        kind: growth_of(
            clean.pairs, [(m.condition.severity, m.pairs) for m in row], replicates, seed
        )
        for kind, row in kinds.items()
    }
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    severity_figure(_curves(clean, kinds, growth), out / "robustness.png")
    record = {
        "about": about,
        "measurements": [_plain(item) for item in measurements],
        "growth": {kind: item.to_dict() for kind, item in growth.items()},
    }
    (out / "results.json").write_text(json.dumps(_nullified(record), indent=1) + "\n")
    (out / "results.md").write_text(_markdown(measurements, growth, about, replicates))
    return growth


def _sorted(
    measurements: Sequence[Measurement],
) -> tuple[Measurement, dict[str, list[Measurement]]]:
    """The clean one, and the others by kind; refuses what cannot be compared."""
    clean = next(item for item in measurements if item.condition == CLEAN)
    if not clean.pairs.strict.any():
        raise DomainError(
            "no detection on clean images overlaps a ground truth of its class, so there is no "
            "uncertainty to compare; train longer or lower the thresholds of BoxUncertaintyMetric."
        )
    if not math.isfinite(clean.metrics["uncertainty/mpiw_90"]):
        raise LevelError(
            "the predicted levels do not reach .05 and .95, the ends of the 90 % interval; set "
            "model.test_cfg.levels=199."
        )
    kinds: dict[str, list[Measurement]] = {}
    for item in measurements:
        if item.condition != CLEAN:
            kinds.setdefault(item.condition.kind, []).append(item)
    return clean, kinds


def _value(item: Measurement, source: str) -> float:
    if source == "std":
        std = item.pairs.std[item.pairs.strict]
        return float(std.mean()) if std.size else float("nan")
    if source == "mAP":
        found = [value for name, value in item.metrics.items() if name.endswith("mAP")]
        return found[0] if found else float("nan")
    return item.metrics.get(source, float("nan"))


def _plain(item: Measurement) -> dict[str, Any]:
    return {
        "kind": item.condition.kind,
        "severity": item.condition.severity,
        "matched": int(item.pairs.strict.sum()),
        "truths": int(item.pairs.truth_counts.sum()),
        "images": len(item.pairs.image_ids),
        **{source.rpartition("/")[2]: _value(item, source) for source in COLUMNS.values()},
    }


def _nullified(value: Any) -> Any:
    """The same with null for NaN, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _nullified(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nullified(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _curves(
    clean: Measurement, kinds: Mapping[str, Sequence[Measurement]], growth: Mapping[str, Growth]
) -> dict[str, dict[str, list[tuple[int, Estimate]]]]:
    """Panel -> kind -> points (severity, value)."""

    def relative(metric: str) -> dict[str, list[tuple[int, Estimate]]]:
        return {
            kind: [(0, Estimate(1.0)), *zip(item.severities, item.ratios(metric), strict=True)]
            for kind, item in growth.items()
        }

    def plain(source: str) -> dict[str, list[tuple[int, Estimate]]]:
        return {
            kind: [
                (m.condition.severity, Estimate(_value(m, source))) for m in [clean, *measurements]
            ]
            for kind, measurements in kinds.items()
        }

    return {
        "width of 90 % intervals / clean, same objects": relative(WIDTH),
        "CRPS / clean, same objects": relative(ERROR),
        "coverage of 90 % intervals": plain("uncertainty/picp_90"),
        "calibration MAE": plain("uncertainty/calibration_mae"),
        "PDQ": plain("pdq/pdq"),
        "mAP": plain("mAP"),
    }


def _markdown(
    measurements: Sequence[Measurement],
    growth: Mapping[str, Growth],
    about: str,
    replicates: int,
) -> str:
    rows = [
        [
            item.condition.kind,
            str(item.condition.severity),
            str(int(item.pairs.strict.sum())),
            *(number(_value(item, source)) for source in COLUMNS.values()),
        ]
        for item in measurements
    ]
    pairs = measurements[0].pairs
    parts = [
        "# Corrupted images",
        about,
        f"{len(pairs.image_ids)} images, {int(pairs.truth_counts.sum())} ground truths. Numbers in "
        "pixels are means over the matched boxes of each row, which are fewer and easier ones "
        "where a corruption hides objects.",
        markdown_table(["corruption", "severity", "matched", *COLUMNS], rows),
        "## Against clean images, on the same objects",
        f"Intervals: 95 %, {replicates} bootstrap replicates over images.",
        markdown_table(
            ["corruption", "severity", "objects", "width / clean", "CRPS / clean"],
            [row for kind, item in growth.items() for row in _ratio_rows(kind, item)],
        ),
        "\n".join(f"- {kind}: uncertainty {item.verdict}" for kind, item in growth.items()),
        "![robustness](robustness.png)",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ratio_rows(kind: str, growth: Growth) -> list[list[str]]:
    columns = zip(
        growth.severities,
        growth.from_clean,
        growth.ratios(WIDTH),
        growth.ratios(ERROR),
        strict=True,
    )
    return [
        [
            kind,
            str(severity),
            "0" if entry is None else str(entry[WIDTH].n_pairs),
            interval(width),
            interval(error),
        ]
        for severity, entry, width, error in columns
    ]
