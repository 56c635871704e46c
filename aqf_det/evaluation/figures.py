"""Figures of an evaluation: calibration, PIT, tables per class and size, hidden sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .bootstrap import Estimate
from .hidden_sides import HiddenSides
from .pairs import BoxPairs
from .scores import CALIBRATION_LEVELS, PairScores
from .summary import Group

COORDINATES = ("x1", "y1", "x2", "y2")


def _subplots(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure that needs no display, and its axes as a 2-D array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=130)
    return path


def calibration_figure(models: Mapping[str, BoxPairs], path: Path) -> Path:
    """Observed against predicted frequency, one panel per model, one line per coordinate."""
    from aqf_core.plots import calibration_curve

    figure, axes = _subplots(1, len(models), 4.4, 4.4)
    for axis, (name, pairs) in zip(axes[0], models.items(), strict=True):
        for side, label in enumerate(COORDINATES):
            table, truth = pairs.quantiles[..., side], pairs.truth[:, side]
            calibration_curve(pairs.levels, table, truth, ax=axis, label=label, title=name)
    return _save(figure, path)


def pit_figure(scores: Mapping[str, PairScores], path: Path) -> Path:
    """Histogram of F(truth) over all coordinates, one panel per model; flat is calibrated."""
    from aqf_core.plots import pit_histogram

    figure, axes = _subplots(1, len(scores), 4.4, 3.4)
    for axis, (name, item) in zip(axes[0], scores.items(), strict=True):
        pit_histogram(item.per_coordinate["pit"], ax=axis, label="x1, y1, x2, y2", title=name)
    return _save(figure, path)


def groups_figure(groups: Mapping[str, Mapping[str, Group]], path: Path) -> Path:
    """CRPS with its interval and 90 % coverage per row (class or size), one colour per model."""
    rows = [row for row, group in next(iter(groups.values())).items() if group.n_pairs]
    figure, axes = _subplots(1, 2, 4.6, 1.2 + 0.28 * len(rows))
    crps_axis, coverage_axis = axes[0]
    offsets = np.linspace(-0.2, 0.2, len(groups)) if len(groups) > 1 else np.zeros(1)
    for offset, (name, table) in zip(offsets, groups.items(), strict=True):
        y = np.arange(len(rows)) + offset
        crps = [table[row].metrics["crps"] for row in rows]
        value = np.array([item.value for item in crps])
        bars = np.abs(np.array([[item.low, item.high] for item in crps]).T - value)
        crps_axis.errorbar(value, y, xerr=bars, fmt="o", markersize=4, capsize=2, label=name)
        covered = [table[row].metrics["picp_90"].value for row in rows]
        coverage_axis.plot(covered, y, "o", markersize=4)
    counts = next(iter(groups.values()))
    names = [f"{row} ({counts[row].n_pairs})" for row in rows]
    crps_axis.set_yticks(np.arange(len(rows)), names, fontsize=8)
    crps_axis.set(xlabel="CRPS, px (95 % interval)")
    figure.legend(*crps_axis.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    coverage_axis.axvline(0.9, color="0.6", linewidth=1, linestyle="--")
    coverage_axis.set_yticks(np.arange(len(rows)), [""] * len(rows))
    coverage_axis.set(xlabel="coverage of the 90 % interval")
    for axis in (crps_axis, coverage_axis):
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.grid(axis="x", alpha=0.3)
    return _save(figure, path)


def hidden_sides_figure(
    models: Mapping[str, HiddenSides], classes: Sequence[str], path: Path
) -> Path:
    """CDF of hidden extensions per class: the truth, and median and spread of predictions."""
    labels = sorted({int(label) for item in models.values() for label in item.label})
    figure, axes = _subplots(1, max(1, len(labels)), 4.0, 3.2)
    for axis, label in zip(axes[0], labels, strict=False):
        for name, item in models.items():
            mask = item.label == label
            if mask.any():
                median = np.median(item.predicted[mask], axis=0)
                low, high = np.percentile(item.predicted[mask], [10, 90], axis=0)
                (line,) = axis.plot(median, CALIBRATION_LEVELS, label=name)
                axis.fill_betweenx(CALIBRATION_LEVELS, low, high, color=line.get_color(), alpha=0.2)
        truth = next(item.true[item.label == label][0] for item in models.values())
        axis.plot(truth, CALIBRATION_LEVELS, color="black", linestyle="--", label="truth")
        axis.set(title=classes[label], xlim=(-0.6, 1.6), ylim=(0, 1))
        axis.set(xlabel="hidden extension / largest one", ylabel="cumulative probability")
        axis.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def severity_figure(
    panels: Mapping[str, Mapping[str, Sequence[tuple[int, Estimate]]]], path: Path
) -> Path:
    """Values against severity: panel title -> name of a line -> (severity, value) points."""
    figure, axes = _subplots((len(panels) + 2) // 3, 3, 3.9, 3.0)
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
        for name, points in lines.items():
            x, y = [severity for severity, _ in points], [item.value for _, item in points]
            # Nothing to draw where an interval is unknown.
            bounds = np.array([[item.value, item.low, item.high] for _, item in points])
            bars = np.nan_to_num(np.abs(bounds[:, 1:] - bounds[:, :1])).T
            axis.errorbar(x, y, yerr=bars, marker="o", markersize=4, capsize=2, label=name)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("severity")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return _save(figure, path)
