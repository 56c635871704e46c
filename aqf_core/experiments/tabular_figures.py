"""Pictures of the tabular experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics import percent_levels
from .comparison import mean_of
from .records import Record
from .tabular import methods_for

__all__ = ["draw_calibration", "draw_crps", "draw_roc", "save_figure", "subplots"]

# A method has the same colour in every panel.
PALETTE = [f"C{k}" for k in range(7)] + ["olive", "teal", "gold", "navy", "magenta"]


def subplots(count: int, size: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure with `count` axes in rows of at most four, drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(4, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size * columns, size * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for ax in axes[count:]:
        ax.set_visible(False)
    return figure, axes[:count]


def save_figure(figure: Any, path: Path) -> None:
    """Write a PNG."""
    figure.savefig(path, dpi=90)


def _labels(results: Sequence[Record]) -> dict[str, str]:
    """Names and labels of the methods that have results, in the order of the library."""
    present = {r["method"] for r in results}
    return {m.name: m.label for m in methods_for(results[0]["task"]) if m.name in present}


def _panels(results: Sequence[Record]) -> tuple[Any, list[tuple[Any, list[Record]]]]:
    """A figure and, for every data set, its axes and its results."""
    names = list(dict.fromkeys(r["dataset"] for r in results))
    figure, axes = subplots(len(names))
    panels = []
    for name, ax in zip(names, axes, strict=True):
        ax.set_title(name)
        panels.append((ax, [r for r in results if r["dataset"] == name]))
    return figure, panels


def draw_crps(results: Sequence[Record], path: Path) -> None:
    """Bars of the mean CRPS of every method, one panel per data set; QFR is dark.

    A number in brackets says that the mean is over so many splits only.
    """
    labels = _labels(results)
    figure, panels = _panels(results)
    for ax, own in panels:
        splits = Counter(r["method"] for r in own)
        means = {n: mean_of([r for r in own if r["method"] == n], "crps") for n in labels}
        order = sorted((n for n in means if means[n] == means[n]), key=lambda n: -means[n])
        colours = ["#1f4e79" if n == "qfr" else "#9db8d2" for n in order]
        few = {n: f" ({splits[n]})" if splits[n] < max(splits.values()) else "" for n in order}
        ax.barh([labels[n] + few[n] for n in order], [means[n] for n in order], color=colours)
        ax.set_xlabel("CRPS (less is better)")
    save_figure(figure, path)


def draw_calibration(results: Sequence[Record], path: Path) -> None:
    """Observed minus nominal share below each quantile, averaged over splits."""
    labels = {n: t for n, t in _labels(results).items() if "-" not in n or n == "quantile-forest"}
    levels = percent_levels().numpy()
    figure, panels = _panels(results)
    drawn: dict[str, Any] = {}
    for ax, own in panels:
        for k, (name, label) in enumerate(labels.items()):
            curves = [r["observed"] for r in own if r["method"] == name]
            if curves:
                gap = np.mean(curves, axis=0) - levels
                colour, width = ("black", 2.2) if name == "qfr" else (PALETTE[k % len(PALETTE)], 1)
                (drawn[label],) = ax.plot(levels, gap, color=colour, linewidth=width)
        ax.axhline(0, color="grey", linewidth=0.6)
        ax.set_xlabel("level")
        ax.set_ylabel("observed share - level")
    figure.legend(list(drawn.values()), list(drawn), fontsize=7, loc="outside right center")
    save_figure(figure, path)


def draw_roc(results: Sequence[Record], path: Path) -> None:
    """ROC curves averaged over splits at equal false positive rates."""
    from sklearn.metrics import roc_curve

    labels = _labels(results)
    grid = np.linspace(0, 1, 201)
    figure, panels = _panels(results)
    for ax, own in panels:
        for name, label in labels.items():
            curves, areas = [], []
            for record in own:
                if record["method"] == name:
                    wrong, right, _ = roc_curve(record["label"], record["probability"])
                    curves.append(np.interp(grid, wrong, right))
                    areas.append(record["auc"])
            if curves:
                ax.plot(grid, np.mean(curves, axis=0), label=f"{label}, {np.mean(areas):.3f}")
        ax.plot([0, 1], [0, 1], color="grey", linewidth=0.6)
        ax.set_xlabel("false positive rate")
        ax.set_ylabel("true positive rate")
        ax.legend(fontsize=6, title="AUC", title_fontsize=6)
    save_figure(figure, path)
