"""Pictures of predictive distributions.

Every function draws on a matplotlib axes (`ax`, or a new one) and returns it, so pictures can be
combined and saved by the caller. matplotlib is imported only when a function is called. Arguments
are NumPy arrays, torch tensors or sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ShapeError
from .metrics import calibration_curve as observed_frequencies
from .metrics import calibration_curve_from_pit, calibration_mae
from .metrics.arrays import ArrayLike, to_tensors

__all__ = ["calibration_curve", "fan_chart", "pit_histogram", "quantile_curves", "width_vs_error"]

# Colours that stay apart in print and for colour-blind readers.
MODEL = "#2a6f97"
MEDIAN = "#012a4a"
TRUTH = "#d1495b"
NEUTRAL = "#6c757d"


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    # A bare figure, unlike pyplot's, is not kept alive by a global registry and needs no display.
    return Figure(figsize=(5, 4), layout="constrained").subplots()


def _tint(strength: float) -> Any:
    """The colour of the model mixed with white."""
    from matplotlib.colors import to_rgb

    return tuple(1 - strength * (1 - channel) for channel in to_rgb(MODEL))


def _arrays(**arrays: ArrayLike) -> list[NDArray[np.float64]]:
    return [t.detach().cpu().double().numpy() for t in to_tensors(**arrays)]


def _finish(ax: Any, x: str, y: str, title: str | None = None) -> Any:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def fan_chart(
    levels: ArrayLike,
    quantiles: ArrayLike,
    y: ArrayLike | None = None,
    x: ArrayLike | None = None,
    ax: Any = None,
    history: ArrayLike | None = None,
    title: str | None = None,
) -> Any:
    """Central intervals of a forecast as nested bands, darker towards the median.

    Args:
        levels: (K,), increasing; pairs (u, 1 - u) become bands, 1/2 becomes a line.
        quantiles: (T, K), one row for each time step.
        y: observations (T,), drawn as a line.
        x: positions of the time steps (T,); 0, 1, ... by default.
        ax: matplotlib axes; a new one by default.
        history: observations before the forecast (H,), drawn to the left of it.
        title: title of the axes.

    Returns:
        The axes.

    Example:
        >>> ax = fan_chart([0.1, 0.5, 0.9], [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0]], y=[0.3, -0.5])
        >>> ax.get_xlabel()
        'time'
    """
    u, q = _arrays(levels=levels, quantiles=quantiles)
    if q.ndim != 2 or u.ndim != 1 or q.shape[1] != len(u):
        raise ShapeError(f"quantiles must be (T, {u.size}), got {q.shape}.")
    t = np.arange(len(q)) if x is None else _arrays(x=x)[0]
    ax = _axes(ax)
    pairs = [(k, len(u) - 1 - k) for k in range(len(u) // 2)]
    for band, (low, high) in enumerate(pairs):
        # Opaque tints, so that the legend shows the very colour of the band.
        tint = _tint(0.2 + 0.5 * (band / max(1, len(pairs) - 1)))
        shown = band in (0, len(pairs) // 2)
        label = f"{u[high] - u[low]:.0%} interval" if shown else None
        ax.fill_between(t, q[:, low], q[:, high], color=tint, linewidth=0, label=label)
    if len(u) % 2:
        ax.plot(t, q[:, len(u) // 2], color=MEDIAN, linewidth=1.5, label="median")
    if y is not None:
        ax.plot(t, _arrays(y=y)[0], color=TRUTH, linewidth=1.2, label="observed")
    if history is not None:
        past = _arrays(history=history)[0]
        step = t[1] - t[0] if len(t) > 1 else 1
        ax.plot(t[0] - step * np.arange(len(past), 0, -1), past, color=NEUTRAL, label="history")
    ax.legend(framealpha=0.8, edgecolor="none")
    return _finish(ax, "time", "value", title)


def calibration_curve(
    levels: ArrayLike,
    quantiles: ArrayLike,
    y: ArrayLike,
    ax: Any = None,
    label: str = "model",
    title: str | None = None,
) -> Any:
    """Observed frequency against predicted level; the diagonal is perfect.

    The grey band holds 95 % of the points of a perfectly calibrated model on as many observations.
    Call again on the same axes to compare models.

    Args:
        levels: (K,), increasing.
        quantiles: (..., K).
        y: observations (...).
        ax: matplotlib axes; a new one by default.
        label: name of the model in the legend; its calibration error is added.
        title: title of the axes.

    Example:
        >>> u = np.arange(1, 10) / 10
        >>> ax = calibration_curve(u, np.tile(u, (50, 1)), np.linspace(0, 1, 50))
        >>> ax.get_ylabel()
        'observed frequency'
    """
    u, q, observed = _arrays(levels=levels, quantiles=quantiles, y=y)
    error = calibration_mae(u, q, observed)
    fresh = ax is None or not ax.has_data()
    ax = _axes(ax)
    if fresh:
        grid = np.linspace(0, 1, 201)
        half = 1.96 * np.sqrt(grid * (1 - grid) / observed.size)
        band = np.clip([grid - half, grid + half], 0, 1)
        ax.fill_between(grid, *band, color=NEUTRAL, alpha=0.2, linewidth=0)
        ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle="--")
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ends = np.concatenate
    curve = observed_frequencies(u, q, observed)
    ax.plot(ends([[0], u, [1]]), ends([[0], curve, [1]]), label=f"{label} (error {error:.3f})")
    ax.legend(framealpha=0.8, edgecolor="none", loc="upper left")
    return _finish(ax, "predicted level", "observed frequency", title)


def pit_histogram(
    pit: ArrayLike, bins: int = 20, ax: Any = None, label: str = "model", title: str | None = None
) -> Any:
    """Histogram of PIT values; flat is calibrated.

    A hump in the middle means intervals too wide, a valley too narrow, a slope a bias. The grey
    band holds 95 % of the bars of a perfectly calibrated model.

    Args:
        pit: F(y) of every observation, any shape.
        bins: number of bars.
        ax: matplotlib axes; a new one by default.
        label: name of the model in the legend.
        title: title of the axes.

    Example:
        >>> ax = pit_histogram(np.linspace(0.01, 0.99, 100), bins=10)
        >>> len(ax.patches)
        10
    """
    values = _arrays(pit=pit)[0].reshape(-1)
    calibration_curve_from_pit(values, [0.5])  # raises unless the values are probabilities
    ax = _axes(ax)
    half = 1.96 * np.sqrt(bins * (1 - 1 / bins) / values.size)
    ax.fill_between([0, 1], 1 - half, 1 + half, color=NEUTRAL, alpha=0.25, linewidth=0)
    ax.axhline(1, color=NEUTRAL, linewidth=1, linestyle="--")
    ax.hist(
        values, bins=bins, range=(0, 1), density=True, color=MODEL, alpha=0.75, rwidth=0.92,
        label=label,
    )  # fmt: skip
    ax.set_xlim(0, 1)
    ax.legend(framealpha=0.8, edgecolor="none")
    return _finish(ax, "PIT value", "density", title)


def quantile_curves(
    x: ArrayLike,
    levels: ArrayLike,
    quantiles: ArrayLike,
    y: ArrayLike | None = None,
    ax: Any = None,
    title: str | None = None,
) -> Any:
    """Conditional quantiles against one input, with the data behind them.

    Args:
        x: input values (N,), in any order.
        levels: (K,), increasing.
        quantiles: (N, K).
        y: observations (N,), drawn as dots.
        ax: matplotlib axes; a new one by default.
        title: title of the axes.

    Example:
        >>> ax = quantile_curves([1.0, 0.0], [0.1, 0.9], [[0.0, 2.0], [-1.0, 1.0]], y=[1.0, 0.0])
        >>> [line.get_label() for line in ax.lines]
        ['0.1', '0.9']
    """
    from matplotlib import colormaps

    inputs, u, q = _arrays(x=x, levels=levels, quantiles=quantiles)
    if inputs.ndim != 1 or q.shape != (len(inputs), len(u)):
        raise ShapeError(f"quantiles must be ({inputs.size}, {u.size}), got {q.shape}.")
    ax = _axes(ax)
    if y is not None:
        ax.scatter(inputs, _arrays(y=y)[0], s=6, color=NEUTRAL, alpha=0.4, linewidths=0)
    order = np.argsort(inputs)
    colours = colormaps["viridis"](0.9 * u)  # the last tenth is too pale on paper
    for k, level in enumerate(u):
        width = 2.0 if np.isclose(level, 0.5) else 1.2
        ax.plot(inputs[order], q[order, k], color=colours[k], linewidth=width, label=f"{level:g}")
    handles, labels = ax.get_legend_handles_labels()
    if len(u) <= 11:
        # Top to bottom in the legend as in the picture.
        ax.legend(handles[::-1], labels[::-1], framealpha=0.8, edgecolor="none", title="level")
    return _finish(ax, "x", "y", title)


def width_vs_error(
    width: ArrayLike,
    error: ArrayLike,
    bins: int = 10,
    ax: Any = None,
    label: str = "model",
    title: str | None = None,
) -> Any:
    """Does the model know when it is wrong? Absolute error against the width of its intervals.

    Dots are single predictions; the line joins the mean error of equally many predictions each, by
    increasing width. An informative model has a rising line.

    Args:
        width: widths of prediction intervals (or standard deviations), any shape.
        error: absolute errors, of the same shape.
        bins: number of groups along the line.
        ax: matplotlib axes; a new one by default.
        label: name of the model in the legend.
        title: title of the axes.

    Example:
        >>> ax = width_vs_error(np.linspace(1, 2, 50), np.linspace(0, 1, 50), bins=5)
        >>> len(ax.lines[0].get_xdata())
        5
    """
    w, e = (a.reshape(-1) for a in _arrays(width=width, error=error))
    if w.shape != e.shape:
        raise ShapeError(f"width and error must have the same size, got {w.size} and {e.size}.")
    e = np.abs(e)
    order = np.argsort(w, kind="stable")
    groups = np.array_split(order, min(bins, len(order)))
    ax = _axes(ax)
    ax.scatter(w, e, s=5, color=NEUTRAL, alpha=0.3, linewidths=0)
    centres = [w[g].mean() for g in groups]
    means = np.array([e[g].mean() for g in groups])
    deviations = np.array([e[g].std() / np.sqrt(len(g)) for g in groups])
    (line,) = ax.plot(centres, means, marker="o", label=f"{label}, mean of {len(groups)} groups")
    ax.fill_between(
        centres, means - 1.96 * deviations, means + 1.96 * deviations, color=line.get_color(),
        alpha=0.2, linewidth=0,
    )  # fmt: skip
    ax.set_ylim(bottom=0)
    ax.legend(framealpha=0.8, edgecolor="none")
    return _finish(ax, "interval width", "absolute error", title)
