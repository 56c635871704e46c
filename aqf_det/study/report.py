"""A study's report: tables, goals, figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aqf_core.metrics import calibration_mae_floor

from ..evaluation.figures import calibration_figure, pit_figure
from ..evaluation.scores import COVERAGES, SIZES, score_pairs
from ..evaluation.tables import differences_table, markdown_table
from .plan import SETTINGS, Run, planned_runs
from .progress import duration
from .run import FIRST, HELD_OUT, TESTED, Study
from .scoring import Row, check_same_boxes
from .variants import AR_QFR, DETECTOR, QFR

COMPARED = ("crps", "calibration_mae", "winkler_90", "nll", "energy")
Rows = Mapping[tuple[str, str, bool], Row]


@dataclass(frozen=True)
class Goal:
    """Something the study was to reach.

    Attributes:
        text: What.
        found: What was measured.
        reached: Whether it is enough.
    """

    text: str
    found: str
    reached: bool


def collect_rows(study: Study) -> dict[tuple[str, str, bool], Row]:
    """Rows by setting, name of the variant (with ``_vd``) and whether calibrated."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for run in planned_runs(study.size):
        runs.setdefault((run.setting, run.row), []).append(run)
    rows = {}
    for (setting, name), members in runs.items():
        for calibrated in (False, True):
            rows[setting, name, calibrated] = Row(
                members[0].title,
                [study.pairs(run, calibrated) for run in members],
                members[0].variant.gaussian,
                study.size.replicates,
            )
    check_same_boxes(list(rows.values()))
    return rows


def best_gaussian(rows: Rows, calibrated: bool) -> Row:
    """The Gaussian branch, with or without MC dropout, of lowest CRPS on unseen images."""
    own = (DETECTOR.name, f"{DETECTOR.name}_vd")
    candidates = [
        row
        for (setting, name, state), row in rows.items()
        if setting == "unseen" and state == calibrated and row.gaussian and name not in own
    ]
    return min(candidates, key=lambda row: row.value("crps"))


def goals(rows: Rows, mean_ap: float) -> list[Goal]:
    """The goals of the study, judged on calibrated predictions of branches of unseen images."""
    qfr, joint = rows["unseen", QFR.name, True], rows["unseen", AR_QFR.name, True]
    published, best = rows["unseen", DETECTOR.name, False], best_gaussian(rows, True)
    against = {"published": qfr.minus(published, "crps"), "best": qfr.minus(best, "crps")}
    energy = joint.minus(qfr, "energy")
    share = {key: item.difference / item.second for key, item in against.items()}
    sizes = {size: qfr.value("picp_90", size) for size in SIZES}
    error, cover = qfr.value("calibration_mae"), qfr.value("picp_90")
    return [
        Goal(
            "QFR's CRPS at least 10 % below that of the published Gaussian",
            f"{share['published']:+.1%} [{against['published'].low:+.3g}, "
            f"{against['published'].high:+.3g}] px",
            share["published"] <= -0.1,
        ),
        Goal(
            "QFR's CRPS below that of the best other Gaussian, interval without zero",
            f"{share['best']:+.1%} [{against['best'].low:+.3g}, {against['best'].high:+.3g}] px "
            f"({best.title})",
            against["best"].high < 0,
        ),
        Goal("calibration MAE at most 0.02", f"{error:.4f}", error <= 0.02),
        Goal("90 % intervals cover 88 to 92 %", f"{cover:.1%}", 0.88 <= cover <= 0.92),
        Goal(
            "and 85 to 95 % in every size class",
            ", ".join(f"{size} {value:.1%}" for size, value in sizes.items()),
            all(0.85 <= value <= 0.95 for value in sizes.values()),
        ),
        Goal(
            "AR-QFR's energy score below that of independent QFR",
            f"{energy.difference:+.3g} [{energy.low:+.3g}, {energy.high:+.3g}] px",
            energy.difference < 0,
        ),
        Goal("mAP50 of the detector at least 0.35", f"{mean_ap:.3f}", mean_ap >= 0.35),
    ]


def main_table(rows: Rows, setting: str, calibrated: bool) -> str:
    """One line per variant."""
    header = ["", "CRPS px", "seeds", "cal. MAE", "NLL", "energy px"]
    header += [f"cover {round(100 * c)} %" for c in COVERAGES] + ["width 90 % px"]
    header += [f"90 % {size}" for size in SIZES]
    lines = []
    for (where, _, state), row in rows.items():
        if where != setting or state != calibrated:
            continue
        crps = row.estimate("crps")
        spread = np.ptp(row.over_seeds("crps")) if len(row.seeds) > 1 else 0.0
        lines.append(
            [
                row.title,
                f"{crps.value:.3f} [{crps.low:.3f}, {crps.high:.3f}]",
                f"±{spread / 2:.3f}" if len(row.seeds) > 1 else "-",
                f"{row.value('calibration_mae'):.4f}",
                f"{row.value('nll'):.3f}",
                f"{row.value('energy'):.2f}",
                *(f"{row.value(f'picp_{round(100 * c)}'):.3f}" for c in COVERAGES),
                f"{row.value('mpiw_90'):.1f}",
                *(f"{row.value('picp_90', size):.3f}" for size in SIZES),
            ]
        )
    return markdown_table(header, lines)


def gap_table(rows: Rows) -> str:
    """Branches of the detector's own images against branches of others, before calibration."""
    header = ["", *(f"{s}: {what}" for what in ("CRPS px", "cover 90 %", "MAE") for s in SETTINGS)]
    lines = []
    for (setting, name, calibrated), row in rows.items():
        if setting != "seen" or calibrated:
            continue
        pair = (rows["unseen", name, False], row)
        lines.append(
            [
                row.title,
                *(f"{item.value('crps'):.3f}" for item in pair),
                *(f"{item.value('picp_90'):.3f}" for item in pair),
                *(f"{item.value('calibration_mae'):.3f}" for item in pair),
            ]
        )
    return markdown_table(header, lines)


def gaussians_table(rows: Rows, calibrated: bool) -> str:
    """QFR's CRPS minus that of every Gaussian."""
    qfr = rows["unseen", QFR.name, calibrated]
    lines = []
    for (setting, _, state), row in rows.items():
        if setting != "unseen" or state != calibrated or not row.gaussian:
            continue
        change = qfr.minus(row, "crps")
        lines.append(
            [
                row.title,
                f"{change.difference:+.3f} [{change.low:+.3f}, {change.high:+.3f}]",
                f"{change.difference / change.second:+.1%}",
                "yes" if change.excludes_zero else "no",
            ]
        )
    return markdown_table(["QFR minus", "CRPS px", "relative", "excludes 0"], lines)


def options_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """One line per option of prediction."""
    header = ["", "mAP50", "pairs", "CRPS px", "calibrated", "cal. MAE", "calibrated"]
    header += ["cover 90 %", "calibrated"]
    lines = []
    for entry in entries:
        before, after = entry["before"], entry["after"]
        values = [entry["title"], f"{entry['points']['area/AP50']:.3f}"]
        values.append(f"{before['uncertainty/n_pairs']:.0f}")
        for name, digits in (("crps", 3), ("calibration_mae", 4), ("picp_90", 3)):
            values += [f"{x[f'uncertainty/{name}']:.{digits}f}" for x in (before, after)]
        lines.append(values)
    return markdown_table(header, lines)


def figures(rows: Rows, out: Path) -> list[Path]:
    """Calibration curves and PIT histograms of three rows before and after calibration."""
    chosen = {}
    for calibrated, word in ((False, "before"), (True, "calibrated")):
        best = best_gaussian(rows, calibrated)
        for name, row in (
            ("published Gaussian", rows["unseen", DETECTOR.name, calibrated]),
            (best.title, best),
            ("QFR", rows["unseen", QFR.name, calibrated]),
        ):
            pairs = row.seeds[0]
            chosen[f"{name}, {word}"] = pairs.select(pairs.strict)
    out.mkdir(parents=True, exist_ok=True)
    return [
        calibration_figure(chosen, out / "calibration.png"),
        pit_figure({k: score_pairs(v) for k, v in chosen.items()}, out / "pit.png"),
    ]


def strongest_correlation(base_values: Tensor) -> float:
    """The correlation farthest from 0 between two columns of base values (N, 4).

    Values beyond 4 deviations count as 4: a few of them would decide.

    Example:
        >>> z = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
        >>> abs(strongest_correlation(z)) < 0.1
        True
        >>> z[:, 3] = -z[:, 1]
        >>> round(strongest_correlation(z), 2)
        -1.0
    """
    every = torch.corrcoef(base_values.clamp(-4.0, 4.0).double().T)
    row, column = torch.triu_indices(len(every), len(every), offset=1)
    pairs = every[row, column]
    return float(pairs[pairs.abs().argmax()])


def markdown(study: Study, rows: Rows, options: Sequence[Mapping[str, Any]], command: str) -> str:
    """The whole report."""
    entries = study.ledger.entries()
    tested, held = entries[TESTED], entries[HELD_OUT]
    mean_ap = tested["metrics"]["area/AP50"]
    judged = goals(rows, mean_ap)
    table = markdown_table(
        ["goal", "measured", "reached"],
        [[goal.text, goal.found, "yes" if goal.reached else "**no**"] for goal in judged],
    )
    seconds = sum(sum(e.get("seconds", {}).values()) for e in entries.values())
    best = best_gaussian(rows, True)
    qfr, joint = rows["unseen", QFR.name, True], rows["unseen", AR_QFR.name, True]
    energy = {name: joint.minus(qfr, name) for name in ("energy", "crps")}
    detailed = {name: qfr.minus(best, name) for name in COMPARED}
    eleven = tested["metrics"]["pascal_voc/AP50"]
    return f"""\
# Boxes of real photographs: VOC

{tested["images"]} test images with {tested["truths"]} objects, {tested["pairs"]} of them found and
judged (strict protocol). All rows share one frozen detector and so bit for bit the same boxes and
scores: mAP50 {mean_ap:.3f} (area; 11 points: {eleven:.3f}) is that of every row. Values are means
over {study.size.seeds} seeds of the branch (± half their range), brackets 95 % bootstrap intervals
over images ({study.size.replicates} replicates). Perfect predictions of as many boxes have a
calibration MAE of about {calibration_mae_floor(tested["pairs"]):.4f}.

{table}

## Before calibration

Branches took {study.size.pretraining} steps on the detector's own images and then
{study.size.steps} on {held["images"]} images that it has not seen. They are told where the picture
ends.

{main_table(rows, "unseen", False)}

## Calibrated

Each held-out image was predicted by a branch that learned from the other {study.size.folds - 1} of
{study.size.folds} folds; the maps were fitted to these {held["pairs"]} boxes. The branch that is
tested learned from all folds. The detector's own Gaussian is calibrated on the same images.

{main_table(rows, "unseen", True)}

## QFR against the Gaussians

Calibrated, all paired:

{gaussians_table(rows, True)}

Before calibration:

{gaussians_table(rows, False)}

QFR and the best other Gaussian ({best.title}), calibrated:

{differences_table(detailed, "QFR", "Gaussian")}

AR-QFR and independent QFR, calibrated:

{differences_table(energy, "AR-QFR", "QFR")}

What is there to gain: the sides' base values z = Phi^-1(F(x)) of held-out boxes, by QFR branches
that have not seen the image, are independent if QFR misses nothing. The largest correlation of two
sides is {strongest_correlation(study.held_out_boxes(FIRST).base_values):+.2f}.

## Trained on the detector's own images

A detector errs less on images it was trained on; branches that learn only there are too sure.
Before calibration:

{gap_table(rows)}

After calibration on the {held["images"]} unseen images:

{main_table(rows, "seen", True)}

## Options of prediction

One seed of QFR, the whole detector; these change boxes or scores, so mAP may change.

{options_table(options)}

## How it was made

```bash
{command}
```

CPU time on one core without the trunk's features: {duration(seconds)}.
"""


def as_json(study: Study, rows: Rows, options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All numbers of the report."""
    entries = study.ledger.entries()
    mean_ap = entries[TESTED]["metrics"]["area/AP50"]
    return {
        "detector": {name: entries[name] for name in (TESTED, HELD_OUT)},
        "goals": [goal.__dict__ for goal in goals(rows, mean_ap)],
        "rows": [
            {
                "setting": setting,
                "row": name,
                "calibrated": calibrated,
                **{
                    size: {metric: row.value(metric, size) for metric in row.tables[size]}
                    for size in row.tables
                },
            }
            for (setting, name, calibrated), row in rows.items()
        ],
        "options": list(options),
    }


def write_report(study: Study, options: Sequence[Mapping[str, Any]], command: str) -> list[Path]:
    """Write figures, ``results.md`` and, last, ``results.json``."""
    rows = collect_rows(study)
    paths = figures(rows, study.out)
    text = markdown(study, rows, options, command)
    (study.out / "results.md").write_text(text)
    numbers = json.dumps(as_json(study, rows, options), indent=1, default=bool)
    (study.out / "results.json").write_text(numbers + "\n")
    return [study.out / "results.md", study.out / "results.json", *paths]
