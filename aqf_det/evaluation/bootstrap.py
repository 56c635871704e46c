"""Bootstrap over images: objects of one image are not independent, images are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DEFAULT_REPLICATES = 1000


@dataclass(frozen=True)
class Estimate:
    """A value with the bounds of its 95 % interval; NaN where there was nothing to average."""

    value: float
    low: float = float("nan")
    high: float = float("nan")

    @classmethod
    def from_replicates(cls, replicates: NDArray, reflect: bool = False) -> Estimate:
        """The first entry is the value on the data itself, the others give the percentiles.

        Args:
            replicates: ``(R,)``.
            reflect: For a mean of absolute deviations. Resampling adds its noise to that of the
                data, so all replicates tend to lie above the value; the percentiles are reflected
                at the value, cut at 0, and the upper end is at least the value itself.
        """
        value, rest = float(replicates[0]), replicates[1:]
        rest = rest[np.isfinite(rest)]
        if not np.isfinite(value) or len(rest) == 0:
            return cls(value)
        low, high = (float(bound) for bound in np.percentile(rest, [2.5, 97.5]))
        if reflect:
            low, high = max(0.0, 2 * value - high), max(value, 2 * value - low)
        return cls(value, low, high)

    def named(self, name: str) -> dict[str, float]:
        """``name``, ``name_low`` and ``name_high``, as metrics report it."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def image_weights(n_images: int, replicates: int, seed: int) -> NDArray[np.float64]:
    """How often each image occurs, ``(1 + replicates, n_images)``; row 0 is the data itself."""
    rng = np.random.default_rng(seed)
    first = np.ones((1, n_images))
    if n_images == 0 or replicates == 0:
        return first
    drawn = rng.multinomial(n_images, np.full(n_images, 1 / n_images), size=replicates)
    return np.concatenate([first, drawn.astype(float)])


def replicate_means(
    values: NDArray, image: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean of per-pair values ``(P, ...)`` in every replicate, ``(R, ...)``; NaN without a pair.

    Args:
        values: One entry per pair.
        image: ``(P,)`` the image of each pair.
        weights: ``(R, n_images)`` from :func:`image_weights`.
    """
    present, row = np.unique(image, return_inverse=True)
    width = int(np.prod(values.shape[1:]))
    sums = np.zeros((len(present), width))
    np.add.at(sums, row, values.reshape(len(values), width))
    chosen = weights[:, present]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (chosen @ sums) / (chosen @ np.bincount(row, minlength=len(present)))[:, None]
    return means.reshape(len(weights), *values.shape[1:])
