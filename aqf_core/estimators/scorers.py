"""Scorers for model search: `GridSearchCV(model, grid, scoring=neg_crps)`. Larger is better."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..metrics import calibration_mae_from_pit, check_score, percent_levels, winkler_score

__all__ = [
    "SCORERS",
    "interval_scorer",
    "log_likelihood",
    "neg_calibration_mae",
    "neg_check_score",
    "neg_crps",
    "pinball_scorer",
]


def _predict_dist(estimator: Any, X: Any) -> Any:
    """`predict_dist` of an estimator, also where it ends a pipeline."""
    if hasattr(estimator, "predict_dist"):
        return estimator.predict_dist(X)
    return estimator[-1].predict_dist(estimator[:-1].transform(X))


class _LevelScorer:
    """Minus the mean pinball loss of one quantile level."""

    def __init__(self, level: float) -> None:
        self.level = level

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        quantile = _predict_dist(estimator, X).quantile(self.level)
        error = np.asarray(y, dtype=np.float64) - quantile
        return -float(np.maximum(self.level * error, (self.level - 1) * error).mean())


class _IntervalScorer:
    """Minus the mean Winkler score of the central interval."""

    def __init__(self, coverage: float) -> None:
        self.coverage = coverage

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        ends = _predict_dist(estimator, X).interval(self.coverage)
        low, high = np.moveaxis(ends, -1, 0)
        y = np.asarray(y, dtype=np.float64)
        return -float(np.mean(winkler_score(low, high, y, self.coverage)))


def neg_crps(estimator: Any, X: Any, y: Any) -> float:
    """Minus the mean CRPS, as `estimator.score`."""
    return float(estimator.score(X, y))


def neg_check_score(estimator: Any, X: Any, y: Any) -> float:
    """Minus the mean pinball loss over the levels .01, ..., .99."""
    levels = percent_levels(torch.float64).numpy()
    quantiles = _predict_dist(estimator, X).quantile(levels)
    return -float(check_score(levels, quantiles, np.asarray(y, dtype=np.float64)))


def neg_calibration_mae(estimator: Any, X: Any, y: Any) -> float:
    """Minus the mean distance between levels and the share of observations below them."""
    pit = _predict_dist(estimator, X).cdf(np.asarray(y, dtype=np.float64))
    return -float(np.mean(calibration_mae_from_pit(pit)))


def log_likelihood(estimator: Any, X: Any, y: Any) -> float:
    """The mean log density of the observations."""
    return float(np.mean(_predict_dist(estimator, X).log_pdf(np.asarray(y, dtype=np.float64))))


def pinball_scorer(level: float) -> Any:
    """A scorer that cares about one quantile only.

    Example:
        >>> from sklearn.model_selection import GridSearchCV
        >>> from aqf_core.estimators import QuantileFlowRegressor
        >>> grid = {"learning_rate": [1e-3, 1e-2]}
        >>> search = GridSearchCV(QuantileFlowRegressor("fast"), grid, scoring=pinball_scorer(0.9))
    """
    return _LevelScorer(level)


def interval_scorer(coverage: float = 0.9) -> Any:
    """A scorer that cares about central intervals: narrow, but with y inside."""
    return _IntervalScorer(coverage)


SCORERS = {
    "log_likelihood": log_likelihood,
    "neg_calibration_mae": neg_calibration_mae,
    "neg_check_score": neg_check_score,
    "neg_crps": neg_crps,
}
