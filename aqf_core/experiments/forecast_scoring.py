r"""One way to score every forecast: quantiles over paths against what came true.

ND is \(\sum|y - \hat y| / \sum|y|\) of the median, RMSE the root mean squared error of the mean
divided by the mean |y|, CHK the mean pinball loss over the levels .01, ..., .99 in the units of the
series, the weighted quantile loss its scale-free form. All of them sum over series, so large series
count more, as in the literature; CRPS is also kept per series.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from .records import Record

__all__ = ["LEVELS", "score_paths", "score_points", "share_of_wins"]

Array = NDArray[np.float64]

LEVELS: Array = np.arange(1, 100) / 100


def score_points(prediction: Array, truth: Array) -> Record:
    """ND and RMSE of point forecasts (W, H).

    Example:
        >>> score_points(np.ones((2, 2)), np.full((2, 2), 2.0))
        {'nd': 0.5, 'rmse': 0.5}
    """
    known = ~np.isnan(truth)
    p, y = prediction[known], truth[known]
    return {"nd": float(metrics.nd(p, y)), "rmse": float(metrics.nrmse(p, y))}


def score_paths(paths: Array, truth: Array, series: NDArray[np.int64]) -> Record:
    """All scores of sample paths (W, n, H) for truths (W, H), NaN where unknown.

    Args:
        paths: joint samples.
        truth: what came true.
        series: number of the series of each window, (W,).

    Returns:
        nd, rmse, check_score, wql, coverage_50, coverage_80, coverage_90, width_80, by_step (80 %
        coverage of every step), by_origin (check score of the first, second, ... window of the
        series), crps_series (mean CRPS of every series) and energy (of whole paths, per step).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = score_paths(rng.normal(size=(50, 99, 4)), rng.normal(size=(50, 4)),
        ...                      np.repeat([0, 1], 25))
        >>> 0.7 < scores["coverage_80"] < 0.9, len(scores["by_step"]), len(scores["crps_series"])
        (True, 4, 2)
    """
    table = np.moveaxis(np.quantile(paths, LEVELS, axis=1, method="hazen"), 0, -1)
    known = ~np.isnan(truth)
    filled = np.where(known, truth, 0.0)
    pinball = metrics.check_score(LEVELS, table, filled, reduction="none")
    pinball = np.where(known, pinball, np.nan)

    def inside(low: int, high: int) -> Array:
        held = (filled >= table[..., low]) & (filled <= table[..., high])
        return np.where(known, held, np.nan)

    crps = np.where(known, metrics.crps_from_samples(
        np.moveaxis(paths, 1, 0), filled, reduction="none"
    ), np.nan)  # fmt: skip
    middle = inside(9, 89)
    order = _place_within(series)
    return {
        "nd": score_points(table[..., 49], truth)["nd"],
        "rmse": score_points(paths.mean(1), truth)["rmse"],
        "check_score": float(np.nanmean(pinball)),
        "wql": float(2 * np.nansum(pinball) / np.abs(filled).sum()),
        "coverage_50": float(np.nanmean(inside(24, 74))),
        "coverage_80": float(np.nanmean(middle)),
        "coverage_90": float(np.nanmean(inside(4, 94))),
        "width_80": float((table[..., 89] - table[..., 9]).mean()),
        "by_step": _rounded(np.nanmean(middle, axis=0), 4),
        "by_origin": _rounded([np.nanmean(pinball[order == k]) for k in np.unique(order)]),
        "crps_series": _rounded([np.nanmean(crps[series == i]) for i in np.unique(series)]),
        "energy": _energy(paths, truth),
    }


def share_of_wins(ours: Array, theirs: Array, tolerance: float = 0.05) -> tuple[float, ...]:
    """Shares of series on which ours is better, both are within the tolerance, theirs is better.

    Example:
        >>> share_of_wins(np.array([1.0, 1.0, 2.0, 1.0]), np.array([2.0, 1.01, 1.0, 1.2]))
        (0.5, 0.25, 0.25)
    """
    even = np.abs(ours - theirs) <= tolerance * np.minimum(ours, theirs)
    shares = (~even & (ours < theirs), even, ~even & (ours > theirs))
    return tuple(float(s.mean()) for s in shares)


def _place_within(series: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, 2, ... for the windows of each series."""
    return np.concatenate([np.arange((series == i).sum()) for i in np.unique(series)])


def _energy(paths: Array, truth: Array, most: int = 2000) -> float:
    """Energy score of whole paths relative to the size of the truth, on at most 2,000 windows."""
    whole = np.flatnonzero(~np.isnan(truth).any(1))
    pick = whole[np.linspace(0, len(whole) - 1, min(most, len(whole))).astype(int)]
    from .scoring import energy

    size = np.abs(truth[pick]).mean()
    return energy(paths[pick][:, :100], truth[pick]) / float(size)


def _rounded(values: Array | list[float], digits: int | None = None) -> list[float]:
    if digits is not None:
        return [round(float(v), digits) for v in values]
    return [float(f"{v:.6g}") for v in values]
