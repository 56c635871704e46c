"""Scores of every pair and coordinate, computed from the predicted quantiles by ``aqf_core``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from aqf_core.metrics import (
    coverage,
    crps_from_quantiles,
    energy_score,
    interval_width,
    winkler_score,
)

from ..quantile_tables import interpolated, quantiles_at, spaced
from .pairs import BoxPairs

CALIBRATION_LEVELS = np.arange(1, 100) / 100
COVERAGES = (0.50, 0.80, 0.90, 0.95)
SIZES = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, float("inf"))}

_INTERVAL_KINDS = ("picp", "mpiw", "winkler")
PER_COORDINATE = (
    "crps",
    "nll",
    "pit",
    *(f"{kind}_{round(100 * cover)}" for kind in _INTERVAL_KINDS for cover in COVERAGES),
)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class PairScores:
    """Scores of P pairs, coordinates x1, y1, x2, y2 last.

    Attributes:
        calibration_levels: ``(L,)`` those of .01 ... .99 that the predicted levels reach.
        below: ``(P, L, 4)`` whether the truth lies at or below the quantile of that level.
        per_coordinate: ``(P, 4)`` arrays: ``crps``, ``nll``, ``pit`` and, per coverage c in
            percent, ``picp_c`` (inside the central interval), ``mpiw_c`` (its width),
            ``winkler_c``; NaN where the predicted levels do not reach the interval's ends.
        energy: ``(P,)`` energy score.
    """

    calibration_levels: FloatArray
    below: NDArray[np.bool_]
    per_coordinate: dict[str, FloatArray]
    energy: FloatArray

    def select(self, index: NDArray) -> PairScores:
        """The scores of some pairs."""
        return PairScores(
            self.calibration_levels,
            self.below[index],
            {name: values[index] for name, values in self.per_coordinate.items()},
            self.energy[index],
        )


def score_pairs(pairs: BoxPairs, chunk: int = 4096) -> PairScores:
    """Score every pair, ``chunk`` of them at a time; empty arrays where there is none."""
    reach = (pairs.levels[0] - 1e-9, pairs.levels[-1] + 1e-9)
    wanted = CALIBRATION_LEVELS[(CALIBRATION_LEVELS >= reach[0]) & (CALIBRATION_LEVELS <= reach[1])]
    below = np.zeros((len(pairs), len(wanted), 4), bool)
    result = {name: np.zeros((len(pairs), 4)) for name in PER_COORDINATE}
    for start in range(0, len(pairs), chunk):
        rows = slice(start, start + chunk)
        truth, quantiles = pairs.truth[rows], spaced(pairs.quantiles[rows], 0.0)
        below[rows] = truth[:, None] <= quantiles_at(pairs.levels, quantiles, wanted)
        for name, values in _scores(pairs.levels, quantiles, truth).items():
            result[name][rows] = values
    return PairScores(wanted, below, result, pairs.energy)


def _scores(levels: FloatArray, quantiles: FloatArray, truth: FloatArray) -> dict[str, FloatArray]:
    """The per-coordinate scores ``(P, 4)`` of quantiles ``(P, K, 4)``."""
    distribution = interpolated(levels, quantiles)
    y = torch.from_numpy(truth)
    result = {
        "crps": crps_from_quantiles(levels, np.moveaxis(quantiles, 1, -1), truth, "none"),
        "nll": -distribution.log_prob(y).numpy(),
        "pit": distribution.cdf(y).numpy(),
    }
    for cover in COVERAGES:
        result.update(_interval_scores(levels, quantiles, truth, cover))
    return result


def _interval_scores(
    levels: FloatArray, quantiles: FloatArray, truth: FloatArray, cover: float
) -> dict[str, FloatArray]:
    """Hit, width and Winkler score of the central interval."""
    name = f"{round(100 * cover)}"
    ends = ((1 - cover) / 2, (1 + cover) / 2)
    if levels[0] > ends[0] + 1e-9 or levels[-1] < ends[1] - 1e-9:
        missing = np.full(truth.shape, np.nan)
        return {f"{kind}_{name}": missing for kind in _INTERVAL_KINDS}
    bounds = quantiles_at(levels, quantiles, ends)
    low, high = bounds[:, 0], bounds[:, 1]
    return {
        f"picp_{name}": coverage(low, high, truth, "none"),
        f"mpiw_{name}": interval_width(low, high, "none"),
        f"winkler_{name}": winkler_score(low, high, truth, cover, "none"),
    }


def pair_energy(
    truth: FloatArray,
    levels: FloatArray,
    quantiles: NDArray,
    samples: NDArray | None,
    rng: np.random.Generator,
    draws: int = 200,
) -> tuple[FloatArray, str]:
    """Fair energy score of boxes, from joint samples or from independent draws of the four sides.

    Args:
        truth: ``(P, 4)``, P >= 1.
        levels: ``(K,)``.
        quantiles: ``(P, K, 4)``.
        samples: ``(P, S, 4)`` with S >= 2, or None to draw each side from its own quantiles.
        rng: Source of the draws.
        draws: Number of independent draws.

    Returns:
        ``(P,)`` scores and ``"samples"`` or ``"independent"``.
    """
    if samples is not None:
        return energy_score(np.moveaxis(samples, 1, 0), truth, reduction="none"), "samples"
    u = torch.from_numpy(rng.random((draws, len(truth), 4))).clamp(1e-12, 1 - 1e-12)
    boxes = interpolated(levels, quantiles).icdf(u).numpy()
    return energy_score(boxes, truth, reduction="none"), "independent"


def size_mask(pairs: BoxPairs, size: str) -> NDArray[np.bool_]:
    """Which pairs have a ground truth of COCO's ``small``, ``medium`` or ``large`` area."""
    area = (pairs.truth[:, 2] - pairs.truth[:, 0]) * (pairs.truth[:, 3] - pairs.truth[:, 1])
    low, high = SIZES[size]
    return (area >= low) & (area < high)
