"""Box sides given as tables of quantiles."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from aqf_core.errors import LevelError, ShapeError
from aqf_core.interpolation import InterpolatedPredictive

MIN_SPACING = 1e-4  # pixels; the density between equal neighbours would be infinite

FloatArray = NDArray[np.float64]


def check_open_levels(levels: ArrayLike, name: str = "level") -> FloatArray:
    """Levels as a 1-D array, or `LevelError` when one is not strictly inside (0, 1).

    Example:
        >>> check_open_levels(0.5)
        array([0.5])
        >>> check_open_levels([0.5, 95])
        Traceback (most recent call last):
        ...
        aqf_core.errors.LevelError: level must lie strictly inside (0, 1), got 95.0; ...
    """
    try:
        values = np.atleast_1d(np.asarray(levels, dtype=float))
    except (TypeError, ValueError):
        raise LevelError(f"{name} must be a number or a list of numbers, got {levels!r}.") from None
    if values.ndim != 1 or len(values) == 0:
        raise LevelError(f"{name} must be a number or a non-empty list, got {levels!r}.")
    outside = values[~((values > 0) & (values < 1))]
    if len(outside):
        raise LevelError(
            f"{name} must lie strictly inside (0, 1), got {outside[0]}; "
            "pass probabilities, not percentages."
        )
    return values


def check_levels(levels: ArrayLike) -> FloatArray:
    """Levels of a table as an array: :func:`check_open_levels`, and increasing."""
    values = check_open_levels(levels, "quantile levels")
    for low, high in zip(values, values[1:], strict=False):
        if high <= low:
            raise LevelError(f"quantile levels must increase, got {low:g} before {high:g}.")
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
    known, values = check_levels(levels), np.asarray(quantiles, float)
    if values.ndim != 3 or values.shape[1] != len(known):
        raise ShapeError(
            f"quantiles must be (N, {len(known)}, 4) for {len(known)} levels, got {values.shape}."
        )
    targets = check_open_levels(wanted, "quantile levels")
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
