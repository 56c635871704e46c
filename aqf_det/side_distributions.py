"""What is known about the four sides of boxes, as plain arrays; no model is needed to ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aqf_core.errors import DomainError, LevelError, NonFiniteError, ShapeError

from .quantile_tables import check_levels, check_open_levels, quantiles_at

FloatArray = NDArray[np.float64]


def _regions(region: ArrayLike) -> tuple[FloatArray, bool]:
    """Regions (M, 4) and whether a single one (4,) was given."""
    array = np.asarray(region, dtype=float)
    if array.ndim not in (1, 2) or array.shape[-1] != 4:
        raise ShapeError(f"region must have shape (4,) or (M, 4), got {array.shape}.")
    regions = np.atleast_2d(array)
    if np.isnan(regions).any():
        raise NonFiniteError("region contains NaN.")
    if not (regions[:, 2:] > regions[:, :2]).all():
        raise DomainError("region must be x1, y1, x2, y2 with x1 < x2 and y1 < y2.")
    return regions, array.ndim == 1


@dataclass(frozen=True)
class SideDistributions:
    """Distributions of the coordinates x1, y1, x2, y2 of N boxes.

    Between stored levels quantiles are interpolated linearly in the level; a level beyond the
    outermost stored one is refused. Where samples of whole boxes exist they answer questions about
    several sides at once; otherwise those answers come from the four marginal distributions, as
    each method says.

    Attributes:
        levels: (K,) ascending in (0, 1).
        values: (N, K, 4) quantiles, not decreasing along the levels.
        samples: (N, S, 4) boxes drawn from the joint distribution, or None.
    """

    levels: FloatArray
    values: FloatArray
    samples: FloatArray | None = None

    def __post_init__(self) -> None:
        levels = check_levels(self.levels)
        values = np.asarray(self.values, dtype=float)
        if values.ndim != 3 or values.shape[1:] != (len(levels), 4):
            raise ShapeError(f"values must have shape (N, {len(levels)}, 4), got {values.shape}.")
        if not np.isfinite(values).all():
            raise NonFiniteError("the quantiles contain NaN or infinite values.")
        slack = 1e-4 * (1 + np.abs(values[:, :-1]))
        if (np.diff(values, axis=1) < -slack).any():
            raise DomainError("the quantiles decrease from one level to the next.")
        object.__setattr__(self, "levels", levels)
        # float32 rounding of equal neighbours may show a decrease of one unit in the last place.
        object.__setattr__(self, "values", np.maximum.accumulate(values, axis=1))
        if self.samples is not None:
            samples = np.asarray(self.samples, dtype=float)
            if samples.ndim != 3 or samples.shape[::2] != (len(values), 4) or not samples.shape[1]:
                raise ShapeError(
                    f"samples must have shape ({len(values)}, S, 4), got {samples.shape}."
                )
            object.__setattr__(self, "samples", samples)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> SideDistributions:
        chosen = np.atleast_1d(np.arange(len(self))[index])
        samples = None if self.samples is None else self.samples[chosen]
        return SideDistributions(self.levels, self.values[chosen], samples)

    def quantile(self, levels: ArrayLike) -> FloatArray:
        """Quantiles of every side: (N, 4) for one level, (N, L, 4) for a list of L."""
        wanted = check_open_levels(levels)
        low, high = self.levels[0], self.levels[-1]
        beyond = wanted[(wanted < low - 1e-12) | (wanted > high + 1e-12)]
        if len(beyond):
            raise LevelError(
                f"level {beyond[0]:g} lies beyond the stored levels {low:g} ... {high:g}; "
                "ask for it when predicting."
            )
        result = quantiles_at(self.levels, self.values, wanted)
        return result[:, 0] if np.ndim(levels) == 0 else result

    def cdf(self, positions: ArrayLike) -> FloatArray:
        """P(side <= position), (N, 4), for positions that broadcast to it: inverts `quantile`.

        Below the lowest and above the highest stored quantile the answer is 0 and 1.
        """
        wanted = np.broadcast_to(np.asarray(positions, dtype=float), (len(self), 4))
        return self._cdf_many(wanted[:, None])[:, 0]

    def _cdf_many(self, positions: FloatArray) -> FloatArray:
        """P(side <= position) for positions (N, M, 4)."""
        result = np.empty(positions.shape)
        for n, side in np.ndindex(len(self), 4):
            known = self.values[n, :, side]
            result[n, :, side] = np.interp(
                positions[n, :, side], known, self.levels, left=0.0, right=1.0
            )
        return result

    def interval(self, coverage: float) -> tuple[FloatArray, FloatArray]:
        """The central interval of each side, (N, 4) low and high: levels (1 -+ coverage) / 2."""
        tail = (1 - float(check_open_levels(coverage, "coverage")[0])) / 2
        bounds = self.quantile([tail, 1 - tail])
        return bounds[:, 0], bounds[:, 1]

    def outer_box(self, credibility: float = 0.9) -> FloatArray:
        """Boxes (N, 4) that hold the whole object with at least this probability.

        With samples: all sides move out to the one level at which that share of the sampled boxes
        lies inside. Without: each side takes a quarter of the missing probability (Bonferroni),
        which holds however the sides depend on each other.
        """
        tail = self._tails(credibility, outer=True)
        return self._box_at(np.stack([tail, tail, 1 - tail, 1 - tail], 1))

    def inner_box(self, credibility: float = 0.9) -> FloatArray:
        """Boxes (N, 4) that lie inside the object with at least this probability.

        As for `outer_box`. Where no area is that certain, an axis collapses to its midpoint.
        """
        tail = self._tails(credibility, outer=False)
        box = self._box_at(np.stack([1 - tail, 1 - tail, tail, tail], 1))
        middle = (box[:, :2] + box[:, 2:]) / 2
        empty = box[:, :2] > box[:, 2:]
        box[:, :2] = np.where(empty, middle, box[:, :2])
        box[:, 2:] = np.where(empty, middle, box[:, 2:])
        return box

    def prob_reaches(self, region: ArrayLike) -> FloatArray:
        """P(the object reaches into a region): (N,) for a region (4,), (N, M) for M regions (M, 4).

        On one axis the object misses (r1, r2) in two ways that exclude each other, x1 >= r2 and
        x2 <= r1, so P = F_x1(r2) - F_x2(r1) without any assumption about how x1 and x2 depend on
        each other. The two axes are multiplied, as if horizontal and vertical sides were
        independent; with samples of whole boxes no such assumption is made. A region may extend to
        infinity, e.g. (100, -inf, inf, inf).
        """
        regions, single = _regions(region)
        if self.samples is None:
            bounds = np.broadcast_to(regions[None], (len(self), *regions.shape))
            # x1 and y1 are compared with the far ends of the region, x2 and y2 with the near ones.
            below = self._cdf_many(bounds[..., [2, 3, 0, 1]])
            axes = np.clip(below[..., :2] - below[..., 2:], 0, 1)
            result = axes.prod(-1)
        else:
            near, far = regions[None, None, :, :2], regions[None, None, :, 2:]
            boxes = self.samples[:, :, None]
            inside = ((boxes[..., :2] < far) & (boxes[..., 2:] > near)).all(-1)
            result = inside.mean(1)
        return result[:, 0] if single else result

    def _box_at(self, levels: FloatArray) -> FloatArray:
        """The side j of box n at its own level `levels[n, j]`."""
        result = np.empty((len(self), 4))
        for n, side in np.ndindex(*result.shape):
            result[n, side] = np.interp(levels[n, side], self.levels, self.values[n, :, side])
        return result

    def _tails(self, credibility: float, outer: bool) -> FloatArray:
        """Per box the tail probability each side may leave out, (N,)."""
        missing = 1 - float(check_open_levels(credibility, "credibility")[0])
        if self.samples is None:
            return np.full(len(self), missing / 4)
        # The level at which a sampled box has its most extreme side: the box lies inside the outer
        # box of tail t exactly when that level is at least t.
        below = self._cdf_many(self.samples)
        outward = np.concatenate([below[..., :2], 1 - below[..., 2:]], -1)
        depth = (outward if outer else 1 - outward).min(-1)
        tail = np.quantile(depth, missing, axis=1, method="lower")
        return np.clip(tail, self.levels[0], 1 - self.levels[0])
