r"""One way to score every method: its quantiles, samples or probabilities against observations.

CRPS is twice the pinball loss integrated over 999 levels, the check score its mean over the 99
percent levels, whatever the method; a method that knows fewer levels is interpolated linearly and
flat beyond its last ones. CRPS / (2 check score) then lies near .99 for any sensible prediction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from .. import metrics
from .records import Record

__all__ = [
    "DENSE_LEVELS",
    "energy",
    "interpolate_levels",
    "score_joint",
    "score_probabilities",
    "score_quantiles",
]

Array = NDArray[np.float64]

DENSE_LEVELS: Array = np.arange(1, 1000) / 1000
PERCENT = slice(9, None, 10)  # where .01, .02, ..., .99 are among the dense levels


def interpolate_levels(levels: Array, quantiles: Array, wanted: Array) -> Array:
    """Quantiles (n, K) at other levels (M,): linear in between, flat outside, sorted.

    Example:
        >>> interpolate_levels(np.array([0.2, 0.8]), np.array([[1.0, 4.0]]), np.array([0.1, 0.4]))
        array([[1., 2.]])
    """
    ordered = np.sort(quantiles, axis=1)
    return np.stack([np.interp(wanted, levels, row) for row in ordered])


def score_quantiles(quantiles: Array, y: Array) -> Record:
    """Scores of quantiles (n, 999) at `DENSE_LEVELS` for observations y (n,).

    Returns:
        check_score, crps, mae (of the median), rmse (of the mean), calibration_mae, coverage and
        width of the central 90 % interval, and the observed share below every percent quantile.

    Example:
        >>> scores = score_quantiles(np.tile(DENSE_LEVELS, (50, 1)), np.linspace(0.01, 0.99, 50))
        >>> round(scores["crps"], 3), round(scores["coverage_90"], 1)
        (0.167, 0.9)
    """
    percent, percents = DENSE_LEVELS[PERCENT], quantiles[:, PERCENT]
    low, high = quantiles[:, 49], quantiles[:, 949]
    return {
        "check_score": float(metrics.check_score(percent, percents, y)),
        "crps": float(metrics.crps_from_quantiles(DENSE_LEVELS, quantiles, y)),
        "mae": float(metrics.mae(quantiles[:, 499], y)),
        "rmse": float(metrics.rmse(quantiles.mean(1), y)),
        "calibration_mae": float(metrics.calibration_mae(percent, percents, y)),
        "coverage_90": float(metrics.coverage(low, high, y)),
        "width_90": float(metrics.interval_width(low, high)),
        "observed": np.round(metrics.calibration_curve(percent, percents, y), 5).tolist(),
    }


def energy(samples: Array, y: Array, rows: int = 16) -> float:
    r"""Mean energy score of samples (n, m, d), divided by \(\sqrt d\), by the fair estimator.

    Divided so, it is comparable with the CRPS of one variable.

    Example:
        >>> round(energy(np.zeros((1, 9, 2)), np.array([[3.0, 4.0]])) * 2**0.5, 6)
        5.0
    """
    parts = [
        metrics.energy_score(
            torch.from_numpy(samples[i : i + rows]).movedim(1, 0),
            torch.from_numpy(y[i : i + rows]),
            reduction="none",
        )
        for i in range(0, len(y), rows)
    ]
    return float(torch.cat(parts).mean()) / float(np.sqrt(y.shape[1]))


def score_joint(quantiles: Callable[[Array], Array], samples: Array, y: Array) -> Record:
    """Scores of a joint prediction: every target by itself, and all together.

    Args:
        quantiles: levels (K,) -> marginal quantiles (n, d, K).
        samples: joint draws (n, m, d).
        y: observations (n, d).

    Returns:
        The means over targets of what `score_quantiles` gives, `energy`, and `crps_targets`.
    """
    table = quantiles(DENSE_LEVELS)
    each = [score_quantiles(table[:, j], y[:, j]) for j in range(y.shape[1])]
    observed = np.mean([scores.pop("observed") for scores in each], axis=0)
    mean = {name: float(np.mean([scores[name] for scores in each])) for name in each[0]}
    return mean | {
        "energy": energy(samples, y),
        "crps_targets": [scores["crps"] for scores in each],
        "observed": np.round(observed, 5).tolist(),
    }


def score_probabilities(probability: Array, y: Array) -> Record:
    """Scores of the probability (n,) that the label y (n,) is 1.

    Example:
        >>> score_probabilities(np.array([0.1, 0.8]), np.array([0.0, 1.0]))["auc"]
        1.0
    """
    from sklearn.metrics import log_loss, roc_auc_score

    # Certainty that is wrong would cost infinitely much.
    bounded = np.clip(probability, 1e-6, 1 - 1e-6)
    return {
        "accuracy": float(np.mean((probability > 0.5) == (y > 0.5))),
        "auc": float(roc_auc_score(y, probability)),
        "brier": float(np.mean((probability - y) ** 2)),
        "log_loss": float(log_loss(y, bounded)),
        "probability": [float(f"{p:.6g}") for p in probability],
        "label": y.astype(int).tolist(),
    }
