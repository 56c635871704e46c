"""Intervals that follow what came true after training.

Recalibration repairs what held-out windows showed; what happens later it cannot know. As origins
roll on, the forecasts made before come true, and tell whether the noise has grown. For every step
of the horizon two factors, one for each side of the median, stretch the base variable of a level,

    z -> z * exp(s_below) for z < 0,    z * exp(s_above) for z > 0,

and after each round of forecasts they move by the share of truths outside the central 80 %,

    s_below += rate * (share below the .1 quantile - .1),

and alike above: adaptive conformal inference (Gibbs and Candes, 2021) on the logarithm of widths.
The mean excess of misses over a span is the change of s divided by the rate and the number of
rounds, so it vanishes as time goes on, whatever the series do. Few forecasts per round say little,
so the rate is proportional to n / (n + FEW) for n of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..recalibration import Recalibration
from .forecast import path_quantiles
from .series import SeriesSet
from .windows import Index

if TYPE_CHECKING:
    from .fitted import Fitted

__all__ = ["LevelMap", "follow", "stretched"]

Array = NDArray[np.float64]

# Share of truths that should lie outside, on each side.
TAIL = 0.1
RATE, FEW = 1.0, 50
# Intervals become at most this much wider or narrower, as a logarithm.
FARTHEST = 1.0


@dataclass(frozen=True)
class LevelMap:
    """Recalibration after stretching: where to read off the quantile function of each step.

    Attributes:
        recalibration: one map per step of the horizon, None for no change.
        stretch: (2, H), logarithms of the factors below and above the median, None for no change.

    Example:
        >>> LevelMap(None, torch.tensor([[0.0], [1.0]])).from_base(torch.tensor([[-1.0], [1.0]]))
        tensor([[-1.0000],
                [ 2.7183]])
    """

    recalibration: Recalibration | None
    stretch: Tensor | None = None

    def from_base(self, z: Tensor) -> Tensor:
        """Base values (K, H) for nominal ones (K, H)."""
        if self.stretch is not None:
            below, above = self.stretch.to(z).exp()
            z = z * torch.where(z < 0, below, above)
        return z if self.recalibration is None else self.recalibration.from_base(z)


def stretched(stretch: Tensor | None, below: Array, above: Array, known: Array) -> Tensor:
    """The factors (2, H) after a round of n forecasts, whose truths were below or above the
    interval (n, H), where known (n, H).

    Example:
        >>> no, yes = np.zeros((50, 1)), np.ones((50, 1))
        >>> stretched(None, no, yes, yes)
        tensor([[-0.0500],
                [ 0.4500]], dtype=torch.float64)
    """
    count = known.sum(0)
    misses = np.stack([(side * known).sum(0) for side in (below, above)])
    change = torch.from_numpy(RATE * (misses - TAIL * count) / (count + FEW))
    if stretch is None:
        return change.clamp(-FARTHEST, FARTHEST)
    # What few held-out windows asked for may lie farther out already.
    limit = stretch.abs().clamp_min(FARTHEST)
    return (stretch + change).clamp(-limit, limit)


def follow(
    fitted: Fitted, data: SeriesSet, index: Index, origins: Index, rolled: Array
) -> tuple[Array, Fitted]:
    """Final paths of windows, each with what had come true at its origin and nothing later.

    Args:
        fitted: a network; without recalibration it does not follow either.
        data: series that include what came true.
        index: number of the series of each window, (W,).
        origins: of the windows, (W,).
        rolled: paths (W, n, H) of `Fitted.rolled_out`.

    Returns:
        Paths (W, n, H), and the network as it is when all these windows have come true.
    """
    source = fitted.source(data)
    if not fitted.calibrated:
        return fitted.finish(data, index, origins, rolled, source), fitted
    horizon = fitted.shape.horizon
    made, due = _times(data, index, origins), _times(data, index, origins + horizon)
    paths = np.empty(rolled.shape)
    open_rounds: list[tuple[np.datetime64, Array, Array, Array]] = []

    def come_true(until: np.datetime64 | None) -> None:
        nonlocal fitted
        while open_rounds and (until is None or open_rounds[0][0] <= until):
            _, *outcome = open_rounds.pop(0)
            fitted = replace(fitted, stretch=stretched(fitted.stretch, *outcome))

    for now in np.unique(made):
        come_true(now)
        rows = np.flatnonzero(made == now)
        paths[rows] = fitted.finish(data, index[rows], origins[rows], rolled[rows], source)
        truth = _truth(data, index[rows], origins[rows], horizon)
        low, high = np.moveaxis(path_quantiles(paths[rows], np.array([TAIL, 1 - TAIL])), -1, 0)
        known = ~np.isnan(truth)
        open_rounds.append((due[rows].max(), truth < low, truth > high, known))
    come_true(None)
    return paths, fitted


def _times(data: SeriesSet, index: Index, steps: Index) -> NDArray[np.datetime64]:
    """Time stamps (W,) of steps (W,) of series."""
    pairs = zip(index, steps, strict=True)
    return np.array([data.frequency.range(data.starts[i], 1, int(t))[0] for i, t in pairs])


def _truth(data: SeriesSet, index: Index, origins: Index, horizon: int) -> Array:
    """What came true (W, H), NaN beyond the end of a series."""
    truth = np.full((len(index), horizon), np.nan)
    for row, (i, t) in enumerate(zip(index, origins, strict=True)):
        values = data.values[i][t : t + horizon]
        truth[row, : len(values)] = values
    return truth
