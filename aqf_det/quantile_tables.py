"""Box sides given as tables of quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from aqf_core.errors import LevelError, ShapeError
from aqf_core.interpolation import InterpolatedPredictive

MIN_SPACING = 1e-4  # pixels; the density between equal neighbours would be infinite

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


def spaced(quantiles: ArrayLike, spacing: float = MIN_SPACING) -> FloatArray:
    """Quantiles ``(N, K, 4)`` moved up where needed, so that neighbours are ``spacing`` apart.

    Repairs rounding that puts neighbours in the wrong order and keeps densities finite.
    """
    values = np.asarray(quantiles, float)
    ramp = spacing * np.arange(values.shape[1])[None, :, None]
    return np.maximum.accumulate(values - ramp, axis=1) + ramp


def interpolated(levels: ArrayLike, quantiles: ArrayLike) -> InterpolatedPredictive:
    """Tables ``(N, K, 4)``, :func:`spaced`, as distributions of batch shape ``(N, 4)``."""
    table = torch.from_numpy(spaced(quantiles)).movedim(1, -1)
    return InterpolatedPredictive(torch.from_numpy(np.asarray(levels, float)), table)
