"""Distributions given as tables of quantiles: interpolation, CDF and density.

Between two levels the quantile function is linear. Beyond the outermost levels it continues as the
exponential tail through the last two quantiles, as in :func:`aqf_core.losses.interpolated_crps`:
``F(x) = u_1 exp((x - q_1) / b)`` with ``b = (q_2 - q_1) / log(u_2 / u_1)``, mirrored on the right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aqf_core.errors import LevelError, ShapeError

MIN_SPACING = 1e-4  # pixels; equal neighbours would have infinite density

FloatArray = NDArray[np.float64]


def check_levels(levels: Sequence[float] | NDArray) -> FloatArray:
    """Levels as an array; increasing and strictly inside (0, 1), or one sentence says why not."""
    values = np.asarray(levels, float)
    if values.ndim != 1 or len(values) == 0:
        raise LevelError(f"quantile levels must be a list of numbers, got {levels!r}.")
    inside = (values > 0) & (values < 1)
    if not inside.all():
        raise LevelError(
            f"quantile levels must lie strictly inside (0, 1), got {values[~inside][0]}."
        )
    if np.any(np.diff(values) <= 0):
        raise LevelError("quantile levels must increase.")
    return values


def quantiles_at(levels: ArrayLike, quantiles: ArrayLike, wanted: ArrayLike) -> FloatArray:
    """Quantiles at other levels by linear interpolation; beyond the ends the outermost one is
    taken.

    Args:
        levels: ``(K,)`` increasing levels in (0, 1).
        quantiles: ``(N, K, 4)``.
        wanted: ``(L,)`` levels in (0, 1).

    Returns:
        ``(N, L, 4)``.
    """
    known, values = check_levels(np.asarray(levels)), np.asarray(quantiles, float)
    if values.ndim != 3 or values.shape[1] != len(known):
        raise ShapeError(
            f"quantiles must be (N, {len(known)}, 4) for {len(known)} levels, got {values.shape}."
        )
    targets = np.asarray(wanted, float)
    if not np.all((targets > 0) & (targets < 1)):
        raise LevelError(f"quantile levels must lie strictly inside (0, 1), got {targets}.")
    if len(known) == 1:
        return np.repeat(values, len(targets), axis=1)
    right = np.clip(np.searchsorted(known, targets), 1, len(known) - 1)
    share = np.clip((targets - known[right - 1]) / (known[right] - known[right - 1]), 0, 1)
    share = share[None, :, None]
    return (1 - share) * values[:, right - 1] + share * values[:, right]


def cdf_and_log_density(
    levels: ArrayLike, quantiles: ArrayLike, x: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """CDF and log-density of tabulated distributions at one point each.

    Quantiles closer than ``MIN_SPACING`` count as that far apart.

    Args:
        levels: ``(K,)``, K >= 2.
        quantiles: ``(N, K, 4)``, not decreasing in K.
        x: ``(N, 4)``.

    Returns:
        ``F(x)`` and ``log f(x)``, each ``(N, 4)``.
    """
    u, q, x = np.asarray(levels, float), np.asarray(quantiles, float), np.asarray(x, float)
    if len(u) < 2:
        raise LevelError("a density needs at least two quantile levels.")
    below = (q <= x[:, None]).sum(1)  # quantiles at or below x
    left = np.clip(below - 1, 0, len(u) - 2)

    def take(index: NDArray) -> FloatArray:
        return np.take_along_axis(q, index[:, None], axis=1)[:, 0]

    spacing = np.maximum(take(left + 1) - take(left), MIN_SPACING)
    mass = u[left + 1] - u[left]
    inner_cdf = u[left] + mass * np.clip((x - take(left)) / spacing, 0, 1)
    inner_log = np.log(mass) - np.log(spacing)

    low_scale = np.maximum(q[:, 1] - q[:, 0], MIN_SPACING) / np.log(u[1] / u[0])
    high_scale = np.maximum(q[:, -1] - q[:, -2], MIN_SPACING) / np.log((1 - u[-2]) / (1 - u[-1]))
    low_step = np.minimum((x - q[:, 0]) / low_scale, 0)
    high_step = np.minimum((q[:, -1] - x) / high_scale, 0)
    is_low, is_high = below == 0, below == len(u)
    cdf = np.where(is_low, u[0] * np.exp(low_step), inner_cdf)
    cdf = np.where(is_high, 1 - (1 - u[-1]) * np.exp(high_step), cdf)
    log_density = np.where(is_low, np.log(u[0] / low_scale) + low_step, inner_log)
    log_density = np.where(is_high, np.log((1 - u[-1]) / high_scale) + high_step, log_density)
    return cdf, log_density
