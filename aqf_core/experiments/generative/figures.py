"""Pictures of generated data: grids of images, training curves, marginals and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import Record
from ..tabular_figures import save_figure, subplots
from .models import METHODS

__all__ = ["draw_curves", "image_grid", "pair_plot", "save_grid"]

Array = NDArray[Any]
GENERATED, REAL = "#2a6f97", "#d1495b"


def image_grid(images: Array, columns: int = 10, scale: int = 4, border: int = 1) -> Array:
    """Images (n, height, width) of any range in one picture, dark strokes on white.

    Args:
        images: the largest value is drawn black, 0 white.
        columns: images per row.
        scale: pixels per pixel.
        border: white pixels between images, before scaling.

    Returns:
        Bytes (rows * (height + border) * scale, columns * (width + border) * scale), about.

    Example:
        >>> image_grid(np.ones((4, 8, 8)), columns=2, scale=1).shape
        (19, 19)
    """
    n, height, width = images.shape
    rows = -(-n // columns)
    page = np.zeros((rows * (height + border) + border, columns * (width + border) + border))
    for k, image in enumerate(images):
        i, j = divmod(k, columns)
        top, left = border + i * (height + border), border + j * (width + border)
        page[top : top + height, left : left + width] = image
    page = 255 - 255 * page / max(1e-12, float(images.max()))
    enlarged: Array = np.kron(page, np.ones((scale, scale))).round().astype(np.uint8)
    return enlarged


def save_grid(images: Array, path: Path, columns: int = 10, scale: int = 4) -> None:
    """Write `image_grid` as a PNG."""
    from PIL import Image

    # Sixteen greys do for a picture of strokes, and make a small file.
    page = Image.fromarray(image_grid(images, columns, scale))
    page.quantize(16).save(path, optimize=True)


def draw_curves(results: Sequence[Record], path: Path) -> None:
    """Log-likelihood and CRPS on validation rows during training, the first seed of each method."""
    names = list(dict.fromkeys(r["dataset"] for r in results))
    figure, axes = subplots(2 * len(names))
    for name, pair in zip(names, zip(axes[::2], axes[1::2], strict=True), strict=True):
        own = [r for r in results if r["dataset"] == name and len(r.get("curve", [])) > 1]
        for record in own:
            if record["seed"] != min(r["seed"] for r in own):
                continue
            steps = [point["step"] for point in record["curve"]]
            for ax, entry in zip(pair, ("log_likelihood", "crps"), strict=True):
                values = [point[entry] for point in record["curve"]]
                ax.plot(steps, values, ".-", label=METHODS[record["method"]].label)
        for ax, title in zip(pair, ("log-likelihood", "CRPS"), strict=True):
            ax.set_title(f"{name}, {title}")
            ax.set_xlabel("step")
        _zoom(pair[0])
        pair[1].legend(fontsize=7)
    save_figure(figure, path)


def _zoom(ax: Any) -> None:
    """Cut off likelihoods that diverge: the axis ends a little below the lower quartile."""
    values = np.concatenate([line.get_ydata() for line in ax.get_lines()] or [np.zeros(1)])
    values = values[np.isfinite(values)]
    if len(values) > 3:
        low, high = np.quantile(values, [0.25, 1.0])
        ax.set_ylim(max(values.min(), low - 2 * (high - low)) - 0.05 * (high - low), None)


def pair_plot(
    real: Array, samples: Array, columns: Sequence[str], path: Path, limit: int = 5
) -> None:
    """Marginals on the diagonal, pairs below it, of the first `limit` variables.

    Args:
        real: observed rows (n, d).
        samples: generated rows (m, d).
        columns: names of the d variables.
        path: of the PNG.
        limit: number of variables shown.
    """
    from matplotlib.figure import Figure

    d = min(limit, real.shape[1])
    figure = Figure(figsize=(1.8 * d, 1.8 * d), layout="constrained")
    grid = figure.subplots(d, d, squeeze=False)
    ranges = [np.quantile(real[:, j], [0.005, 0.995]) for j in range(d)]
    for i in range(d):
        for j in range(d):
            ax = grid[i][j]
            if j > i:
                ax.set_visible(False)
                continue
            if i == j:
                bins = np.linspace(ranges[i][0], ranges[i][1], 31)
                style: dict[str, Any] = {"density": True, "histtype": "step"}
                ax.hist(real[:, i], bins, color=REAL, label="real", **style)
                ax.hist(samples[:, i], bins, color=GENERATED, label="generated", **style)
                ax.set_yticks([])
            else:
                for rows, colour in ((real, REAL), (samples, GENERATED)):
                    ax.plot(rows[:500, j], rows[:500, i], ".", color=colour, ms=2, alpha=0.5)
                ax.set_ylim(*ranges[i])
            ax.set_xlim(*ranges[j])
            ax.tick_params(labelsize=6)
            if i == d - 1:
                ax.set_xlabel(columns[j], fontsize=7)
            if j == 0:
                ax.set_ylabel(columns[i], fontsize=7)
    grid[0][0].legend(fontsize=6)
    save_figure(figure, path)
