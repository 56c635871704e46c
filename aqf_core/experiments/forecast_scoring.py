r"""One way to score every forecast: quantiles of every step against what came true.

ND is \(\sum|y - \hat y| / \sum|y|\) of the median, RMSE the root mean squared error of the mean
divided by the mean |y|, CHK the mean pinball loss over the levels .01, ..., .99 in the units of the
series, the weighted quantile loss its scale-free form. All of them sum over series, so large series
count more, as in the literature; CRPS is also kept per series.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..forecasting.forecast import path_quantiles
from .records import Record
from .scoring import energy

__all__ = [
    "LEVELS",
    "path_energy",
    "score_points",
    "score_table",
    "share_of_wins",
    "table_of",
]

Array = NDArray[np.float64]

LEVELS: Array = np.arange(1, 200) / 200
PERCENT = slice(1, None, 2)  # where .01, .02, ..., .99 are among them


def score_points(prediction: Array, truth: Array) -> Record:
    """ND and RMSE of point forecasts (W, H).

    Example:
        >>> score_points(np.ones((2, 2)), np.full((2, 2), 2.0))
        {'nd': 0.5, 'rmse': 0.5}
    """
    known = ~np.isnan(truth)
    p, y = prediction[known], truth[known]
    return {"nd": float(metrics.nd(p, y)), "rmse": float(metrics.nrmse(p, y))}


def score_table(table: Array, truth: Array, series: NDArray[np.int64]) -> Record:
    """All scores of quantiles (W, H, 199) at `LEVELS` for truths (W, H), NaN where unknown.

    Args:
        table: quantiles of every step of every window.
        truth: what came true.
        series: number of the series of each window, (W,), those of a series side by side.

    Returns:
        nd, rmse, check_score, wql, coverage_50, coverage_80, coverage_90, width_80, by_step (80 %
        coverage of every step), by_origin (check score and ND of the first, second, ... window of
        the series), crps_series (mean CRPS of every series).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = score_table(np.tile(LEVELS, (50, 4, 1)), rng.random((50, 4)),
        ...                      np.repeat([0, 1], 25))
        >>> 0.7 < scores["coverage_80"] < 0.9, len(scores["by_step"]), len(scores["crps_series"])
        (True, 4, 2)
    """
    known = ~np.isnan(truth)
    filled = np.where(known, truth, 0.0)
    percents, quantiles = LEVELS[PERCENT], table[..., PERCENT]
    pinball = metrics.check_score(percents, quantiles, filled, reduction="none")
    crps = metrics.crps_from_quantiles(LEVELS, table, filled, reduction="none")
    pinball, crps = (np.where(known, a, np.nan) for a in (pinball, crps))

    def inside(low: int, high: int) -> Array:
        held = (filled >= quantiles[..., low]) & (filled <= quantiles[..., high])
        return np.where(known, held, np.nan)

    middle, median = inside(9, 89), table[..., 99]
    origins = _place_within(series)
    each = [origins == k for k in np.unique(origins)]
    return {
        "nd": score_points(median, truth)["nd"],
        "rmse": score_points(table.mean(-1), truth)["rmse"],
        "check_score": float(np.nanmean(pinball)),
        "wql": float(2 * np.nansum(pinball) / np.abs(filled).sum()),
        "coverage_50": float(np.nanmean(inside(24, 74))),
        "coverage_80": float(np.nanmean(middle)),
        "coverage_90": float(np.nanmean(inside(4, 94))),
        "width_80": float((quantiles[..., 89] - quantiles[..., 9]).mean()),
        "by_step": _rounded(np.nanmean(middle, axis=0)),
        "by_origin": _rounded([np.nanmean(pinball[rows]) for rows in each]),
        "nd_by_origin": _rounded([score_points(median[r], truth[r])["nd"] for r in each]),
        "coverage_by_origin": _rounded([np.nanmean(middle[rows]) for rows in each]),
        "crps_series": _rounded([np.nanmean(crps[series == i]) for i in np.unique(series)]),
    }


def path_energy(paths: Array, truth: Array) -> float:
    """Energy score of whole paths (W, n, H) per step, relative to the mean |truth|.

    Example:
        >>> round(path_energy(np.zeros((1, 9, 2)), np.array([[3.0, 4.0]])) * 3.5 * 2**0.5, 6)
        5.0
    """
    whole = ~np.isnan(truth).any(1)
    return energy(paths[whole], truth[whole]) / float(np.abs(truth[whole]).mean())


def table_of(paths: Array) -> Array:
    """Quantiles (W, H, 199) at `LEVELS` of paths (W, n, H)."""
    return path_quantiles(paths, LEVELS)


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


def _rounded(values: Array | list[float]) -> list[float]:
    return [float(f"{v:.6g}") for v in values]
