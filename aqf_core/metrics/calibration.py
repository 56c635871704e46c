r"""Is a quantile at level u exceeded by a share 1 - u of the observations?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..errors import LevelError, ShapeError
from ..interpolation import InterpolatedPredictive
from ..validation import check_levels, paired_shape, reduce
from .arrays import Array, ArrayLike, in_kind, to_paired, to_tensors
from .scores import check_table

__all__ = [
    "calibration_curve",
    "calibration_curve_from_pit",
    "calibration_mae",
    "calibration_mae_floor",
    "calibration_mae_from_pit",
    "coverage",
    "crossing_rate",
    "interval_width",
    "percent_levels",
    "pit",
    "pit_from_quantiles",
    "pit_from_samples",
    "winkler_score",
]


def percent_levels(
    dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """The levels .01, .02, ..., .99 at which calibration and check scores are reported: (99,).

    Example:
        >>> percent_levels()[[0, -1]]
        tensor([0.0100, 0.9900])
    """
    return torch.arange(1, 100, dtype=dtype or torch.get_default_dtype(), device=device) / 100


def _percents() -> ArrayLike:
    """`percent_levels` as an array, which takes the dtype and device of whatever it meets."""
    return percent_levels(torch.float64).numpy()


def pit(dist: Distribution, y: Any) -> Any:
    """Probability integral transform F(y): uniform on (0, 1) for a calibrated prediction.

    Args:
        dist: a distribution with `cdf`.
        y: observations, broadcastable against its batch shape.

    Example:
        >>> pit(torch.distributions.Normal(0.0, 1.0), torch.tensor([0.0, 1.6449]))
        tensor([0.5000, 0.9500])
    """
    (x,) = to_tensors(y=y)
    return in_kind(dist.cdf(x), y)


def pit_from_quantiles(levels: ArrayLike, quantiles: Array, y: Array) -> Array:
    """PIT under the piecewise-linear distribution through a table of quantiles.

    Args:
        levels: (K,), increasing, strictly inside (0, 1), K >= 2.
        quantiles: (..., K), non-decreasing.
        y: observations (...).

    Returns:
        F(y), shape (...).

    Example:
        >>> pit_from_quantiles([0.2, 0.8], torch.tensor([[0.0, 6.0]]), torch.tensor([3.0]))
        tensor([0.5000])
    """
    u, q, x = to_tensors(levels=levels, quantiles=quantiles, y=y)
    check_table(u, q, x)
    return in_kind(InterpolatedPredictive(u, q).cdf(x), quantiles, y)


def pit_from_samples(samples: Array, y: Array, generator: torch.Generator | None = None) -> Array:
    r"""Randomised PIT of an ensemble: uniform when y and the m samples are exchangeable.

    \((\#\{x_i < y\} + U (\#\{x_i = y\} + 1)) / (m + 1)\) with U uniform on (0, 1), so neither the
    finite ensemble nor ties spoil uniformity.

    Args:
        samples: (m, ...).
        y: observations (...).
        generator: source of U.

    Example:
        >>> p = pit_from_samples(torch.zeros(9, 1000), torch.zeros(1000))  # all tied
        >>> bool((p > 0.9).any() and (p < 0.1).any())
        True
    """
    s, x = to_tensors(samples=samples, y=y)
    paired_shape(samples=s.shape[1:], y=x.shape)
    u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    below = (s < x).to(x.dtype).sum(0)
    tied = (s == x).to(x.dtype).sum(0)
    return in_kind((below + u * (tied + 1)) / (s.shape[0] + 1), samples, y)


def calibration_curve(levels: ArrayLike, quantiles: Array, y: Array) -> Array:
    r"""Observed frequencies \(\hat P(y \le q_k)\) of each level: shape (K,).

    Plotted against the levels they lie on the diagonal for a calibrated prediction.

    Args:
        levels: (K,), increasing.
        quantiles: (..., K).
        y: observations (...).

    Example:
        >>> y = torch.tensor([0.0, 1.0, 2.0, 3.0])
        >>> calibration_curve([0.25, 0.5], torch.tensor([0.5, 1.5]).expand(4, 2), y)
        tensor([0.2500, 0.5000])
    """
    u, q, x = to_tensors(levels=levels, quantiles=quantiles, y=y)
    check_table(u, q, x)
    return in_kind(_observed(q, x), quantiles, y)


def _observed(quantiles: Tensor, y: Tensor) -> Tensor:
    below = (y.unsqueeze(-1) <= quantiles).to(quantiles.dtype)
    return below.reshape(-1, quantiles.shape[-1]).mean(0)


def calibration_mae(levels: ArrayLike, quantiles: Array, y: Array) -> Array:
    r"""Calibration error \(\frac1K\sum_k |\hat P(y \le q_k) - u_k|\).

    Args:
        levels: (K,), increasing; customarily .01, ..., .99 (`percent_levels`).
        quantiles: (..., K).
        y: observations (...).

    Example:
        >>> y = torch.tensor([0.0, 1.0, 2.0, 3.0])
        >>> calibration_mae([0.25, 0.5], torch.tensor([0.5, 2.5]).expand(4, 2), y)
        tensor(0.1250)
    """
    u, q, x = to_tensors(levels=levels, quantiles=quantiles, y=y)
    check_table(u, q, x)
    return in_kind((_observed(q, x) - u).abs().mean(), quantiles, y)


def calibration_curve_from_pit(pit: Array, levels: ArrayLike | None = None) -> Array:
    """Share of PIT values at or below each level: the calibration curve of any prediction.

    Args:
        pit: F(y) of every observation, any shape.
        levels: (K,); .01, ..., .99 when omitted.

    Example:
        >>> calibration_curve_from_pit(torch.tensor([0.1, 0.6]), [0.5, 0.7])
        tensor([0.5000, 1.0000])
    """
    p, u = to_tensors(pit=pit, levels=_percents() if levels is None else levels)
    check_levels(p, "pit")
    return in_kind(_observed(u.expand(*p.shape, u.shape[-1]), p), pit)


def calibration_mae_from_pit(pit: Array, levels: ArrayLike | None = None) -> Array:
    """Calibration error from PIT values: mean over levels of |share of PIT <= level - level|.

    Args:
        pit: F(y) of every observation, any shape.
        levels: (K,); .01, ..., .99 when omitted.

    Example:
        >>> calibration_mae_from_pit((torch.arange(1000) + 0.5) / 1000) < 1e-3
        tensor(True)
    """
    p, u = to_tensors(pit=pit, levels=_percents() if levels is None else levels)
    check_levels(p, "pit")
    observed = _observed(u.expand(*p.shape, u.shape[-1]), p)
    return in_kind((observed - u).abs().mean(), pit)


def calibration_mae_floor(n: int) -> float:
    r"""Expected calibration error of a perfect model on n observations, about \(0.316/\sqrt n\).

    A sample of n observations never has exact frequencies; no model can be below this on average,
    so report it beside `calibration_mae`. It is the mean over levels .01, ..., .99 of the mean
    absolute deviation of a binomial share (De Moivre):
    \(\frac2n k \binom nk u^k (1-u)^{n-k+1}\), \(k = \lfloor nu \rfloor + 1\).

    Example:
        >>> round(calibration_mae_floor(100), 4)
        0.0315
    """
    if n < 1:
        raise ShapeError(f"n must be at least 1, got {n}.")
    u = percent_levels(torch.float64)
    k = (n * u).floor() + 1
    total = torch.tensor(n + 1.0, dtype=torch.float64)
    log_choose = torch.lgamma(total) - torch.lgamma(k + 1) - torch.lgamma(total - k)
    log_deviation = log_choose + k * u.log() + (n - k + 1) * (1 - u).log()
    return float((2 * k / n * log_deviation.exp()).mean())


def coverage(low: Array, high: Array, y: Array, reduction: str = "mean") -> Array:
    """Share of observations with low <= y <= high.

    Args:
        low, high, y: broadcastable.
        reduction: "mean" (default), "sum" or "none" (then 0/1 for every observation).

    Example:
        >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([-1.0, 0.0, 0.5, 2.0]))
        tensor(0.5000)
    """
    a, b, x = to_paired(low=low, high=high, y=y)
    return in_kind(reduce(((a <= x) & (x <= b)).to(x.dtype), reduction), low, high, y)


def interval_width(low: Array, high: Array, reduction: str = "mean") -> Array:
    """Width high - low of prediction intervals.

    Example:
        >>> interval_width(torch.zeros(2), torch.tensor([1.0, 2.0]))
        tensor(1.5000)
    """
    a, b = to_paired(low=low, high=high)
    return in_kind(reduce(b - a, reduction), low, high)


def winkler_score(
    low: Array, high: Array, y: Array, coverage: float, reduction: str = "mean"
) -> Array:
    r"""Winkler (interval) score, a proper score of a central prediction interval.

    \((h - l) + \frac2\alpha (l - y)_+ + \frac2\alpha (y - h)_+\) with \(\alpha\) = 1 - coverage.

    Args:
        low, high, y: broadcastable.
        coverage: nominal coverage, strictly between 0 and 1.
        reduction: "mean" (default), "sum" or "none".

    Example:
        >>> winkler_score(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 1.1]), 0.8, "none")
        tensor([1.0000, 2.0000])
    """
    if not 0 < coverage < 1:
        raise LevelError(f"coverage must lie strictly between 0 and 1, got {coverage}.")
    a, b, x = to_paired(low=low, high=high, y=y)
    outside = (a - x).clamp_min(0) + (x - b).clamp_min(0)
    return in_kind(reduce(b - a + 2 / (1 - coverage) * outside, reduction), low, high, y)


def crossing_rate(quantiles: Array) -> Array:
    """Share of neighbouring quantiles that are in the wrong order; 0 for a monotone model.

    Args:
        quantiles: (..., K), K >= 2, at increasing levels.

    Example:
        >>> crossing_rate(torch.tensor([[0.0, 1.0, 0.5]]))
        tensor(0.5000)
    """
    (q,) = to_tensors(quantiles=quantiles)
    return in_kind((q.diff(dim=-1) < 0).to(q.dtype).mean(), quantiles)
