"""What held-out windows decide about a trained network: its marginals, and their recalibration.

The distribution of a step can be read off directly or from rolled-out paths, see `Settings`. On
windows that did not train it is known which of them, or their mean, has the lowest quantile loss,
and which map of the levels makes it calibrated, separately for every step of the horizon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..metrics import check_score
from ..recalibration import Recalibration
from .calibration import fit_recalibration, fit_widening
from .forecast import path_quantiles
from .windows import Index

if TYPE_CHECKING:
    from .fitted import Fitted

__all__ = ["HeldForecasts", "choose_marginals", "held_forecasts", "recalibrate", "widening"]

Array = NDArray[np.float64]

# Held-out windows that are forecast, and quantiles of each.
WINDOWS = 4096
LEVELS: Array = (np.arange(100) + 0.5) / 100
# How much lower the loss of one view must be than that of the mean of both to be preferred.
MARGIN = 0.02


class HeldForecasts(NamedTuple):
    """Forecasts of W held-out windows before recalibration, and what came true.

    Attributes:
        views: quantiles (W, H, K) at `LEVELS`, by the kind of marginals.
        truth: (W, H), NaN where unknown.
        scale: (W,), size of the values of each window.
        seed: of the paths.
    """

    views: dict[str, Array]
    truth: Array
    scale: Array
    seed: int


def held_forecasts(fitted: Fitted, held: tuple[Index, Index], seed: int) -> HeldForecasts:
    """Forecast held-out windows in every way that the marginals of a network may have.

    Args:
        fitted: its marginals may be "auto".
        held: series and origins of the windows; may be empty.
        seed: of the paths.
    """
    index, origins = held
    data, horizon, marginals = fitted.data, fitted.shape.horizon, fitted.shape.marginals
    scales = fitted.source(data).scales(index, origins) if len(index) else np.zeros(0)
    usable = np.flatnonzero(np.isfinite(scales))
    if not len(usable):
        return HeldForecasts({}, np.zeros((0, horizon)), np.zeros(0), seed)
    spread = np.linspace(0, len(usable) - 1, min(WINDOWS, len(usable)))
    pick = usable[spread.round().astype(int)]
    places = data, index[pick], origins[pick]
    views = {}
    if marginals != "direct":
        paths = fitted.rolled_out(*places, len(LEVELS), seed)
        views["rolled"] = path_quantiles(paths, LEVELS)
    if marginals != "rolled":
        views["direct"] = fitted.seen_as("direct").quantiles(*places, LEVELS, 0, seed)
    if len(views) == 2:
        views["both"] = 0.5 * (views["rolled"] + views["direct"])
    pairs = zip(index[pick], origins[pick], strict=True)
    truth = np.stack([data.values[i][t : t + horizon] for i, t in pairs])
    return HeldForecasts(views, truth, scales[pick], seed)


def choose_marginals(forecasts: HeldForecasts) -> str:
    """The mean of both views, or another if its quantile loss is lower by more than `MARGIN`.

    Losses are relative to the scale of each window. A mean is seldom far from the best, and days to
    come are not those held out.

    Example:
        >>> truth = np.zeros((50, 2))
        >>> wide = np.tile(LEVELS - 0.5, (50, 2, 1))
        >>> views = {"rolled": wide, "direct": 0.1 * wide}
        >>> choose_marginals(HeldForecasts(views, truth, np.ones(50), 0))
        'direct'
    """
    known = ~np.isnan(forecasts.truth)
    if not known.any():
        return "both"
    y, scale = forecasts.truth[known], forecasts.scale[:, None].repeat(known.shape[1], 1)[known]

    def loss(view: str) -> float:
        pinball = check_score(LEVELS, forecasts.views[view][known], y, reduction="none")
        return float((pinball / scale).mean())

    best = min(forecasts.views, key=loss)
    safe = "both" in forecasts.views and loss("both") <= (1 + MARGIN) * loss(best)
    return "both" if safe else best


def recalibrate(marginals: str, kind: str, forecasts: HeldForecasts) -> Recalibration | None:
    """A map for each step of the horizon, None if there is too little to learn it from."""
    if marginals not in forecasts.views:
        return None
    table = torch.from_numpy(forecasts.views[marginals]).movedim(-1, 1)
    truth = torch.from_numpy(forecasts.truth)
    return fit_recalibration(kind, table, truth, forecasts.seed)


def widening(marginals: str, forecasts: HeldForecasts) -> torch.Tensor | None:
    """One factor for all widths (2, H) instead, for few held-out windows; None without any."""
    if marginals not in forecasts.views:
        return None
    table = torch.from_numpy(forecasts.views[marginals]).movedim(-1, 1)
    return fit_widening(table, torch.from_numpy(forecasts.truth), forecasts.seed)
