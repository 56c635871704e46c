"""A forecast: joint sample paths of every series, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LevelError
from .errors import SeriesError
from .frames import Layout

__all__ = ["Forecast", "event_probability", "path_quantiles"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """Sample paths of S series (or of S windows), as an array and as distributions.

    Attributes:
        samples: (S, n, H): n joint paths of H steps.
        names: of the series, (S,).
        stamps: time stamps, one (H,) per series.
        layout: how series were given; frames are answered by frames.

    Example:
        >>> paths = np.random.default_rng(0).normal(size=(1, 500, 24))
        >>> stamps = [np.datetime64("2024-01-01T00") + np.arange(24)]
        >>> forecast = Forecast(paths, ["load"], stamps)
        >>> forecast.quantiles([0.1, 0.5, 0.9]).shape, forecast.interval(0.8).shape
        ((1, 24, 3), (1, 24, 2))
        >>> bool(forecast.probability(peak_above=1.0)[0] > 0.9)
        True
    """

    samples: Array
    names: Sequence[Any]
    stamps: Sequence[NDArray[np.datetime64]]
    layout: Layout = Layout()

    def __len__(self) -> int:
        return len(self.samples)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.samples, dtype=dtype)

    def __repr__(self) -> str:
        series, n, horizon = self.samples.shape
        return f"Forecast({series} series, {n} paths, {horizon} steps)"

    @property
    def shape(self) -> tuple[int, ...]:
        """(series, paths, steps)."""
        return self.samples.shape

    def quantiles(self, levels: Any) -> Array:
        """Quantiles (S, H, K) at levels (K,) in (0, 1)."""
        wanted = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        if wanted.ndim != 1 or not ((wanted > 0) & (wanted < 1)).all():
            raise LevelError(f"levels must lie strictly between 0 and 1, got {levels}.")
        return path_quantiles(self.samples, wanted)

    def interval(self, coverage: float = 0.9) -> Array:
        """Central interval (S, H, 2) of the given coverage."""
        if not 0 < coverage < 1:
            raise LevelError(f"coverage must lie strictly between 0 and 1, got {coverage}.")
        return self.quantiles([(1 - coverage) / 2, (1 + coverage) / 2])

    def median(self) -> Array:
        """Median (S, H)."""
        return self.quantiles([0.5])[..., 0]

    def mean(self) -> Array:
        """Mean (S, H)."""
        return np.asarray(self.samples.mean(1))

    def probability(self, event: Callable[[Array], Any] | None = None, **named: Any) -> Array:
        """Probability (S,) of an event of the whole path, see `event_probability`."""
        return event_probability(self.samples, event, **named)

    def frame(self, levels: Sequence[float] = (0.1, 0.5, 0.9)) -> Any:
        """Quantiles as a pandas frame in the layout of the input (wide for arrays)."""
        return self.table(self.quantiles(levels), list(levels))

    def table(self, numbers: Array, columns: Sequence[Any]) -> Any:
        """Numbers (S, H, K) as a pandas frame in the layout of the input."""
        return self.layout.frame(self.names, self.stamps, numbers, columns)


def path_quantiles(paths: Array, levels: Array) -> Array:
    """Quantiles (W, H, K) of paths (W, n, H) at levels (K,): Hazen's, the i-th of n ordered values
    has the level (i - 1/2) / n.

    Example:
        >>> path_quantiles(np.arange(4.0).reshape(1, 4, 1), np.array([0.125, 0.5, 0.99]))
        array([[[0. , 1.5, 3. ]]])
    """
    n = paths.shape[1]
    ordered = np.sort(np.ascontiguousarray(np.moveaxis(paths, 1, -1)), axis=-1)
    place = np.clip(levels * n - 0.5, 0, n - 1)
    left = np.minimum(place.astype(int), max(n - 2, 0))
    share = place - left
    low, high = ordered[..., left], ordered[..., np.minimum(left + 1, n - 1)]
    return np.asarray(low + share * (high - low))


def event_probability(
    samples: Array, event: Callable[[Array], Any] | None = None, **named: Any
) -> Array:
    """Share of paths (S,) for which all given events hold.

    Args:
        samples: (S, n, H).
        event: a function of the paths (S, n, H) that returns truth values (S, n).
        **named: `peak_above`, `peak_below`, `trough_above`, `trough_below`, `total_above`,
            `total_below`, `mean_above`, `mean_below`: a number, or one per series; `peak_between`,
            `trough_between`, `total_between`, `mean_between`: a pair (low, high).

    Example:
        >>> paths = np.array([[[1.0, 2.0], [3.0, 4.0]]])
        >>> event_probability(paths, total_between=(2, 4)), event_probability(paths, peak_above=1)
        (array([0.5]), array([1.]))
    """
    holds = np.ones(samples.shape[:2], dtype=bool)
    if event is None and not named:
        raise SeriesError("say which event: for example peak_above=10 or total_between=(a, b).")
    if event is not None:
        truth = np.asarray(event(samples))
        if truth.shape != holds.shape:
            raise SeriesError(
                f"the event must give one truth value per path {holds.shape}, got {truth.shape}."
            )
        holds &= truth.astype(bool)
    for name, bound in named.items():
        what, _, side = name.partition("_")
        if what not in STATISTICS or side not in ("above", "below", "between"):
            raise SeriesError(
                f"unknown event {name!r}; events are peak, trough, total or mean with _above, "
                "_below or _between."
            )
        value = STATISTICS[what](samples)
        if side == "between":
            low, high = (np.reshape(b, (-1, 1)) for b in bound)
            holds &= (value >= low) & (value <= high)
        else:
            limit = np.reshape(bound, (-1, 1))
            holds &= value > limit if side == "above" else value < limit
    return np.asarray(holds.mean(1))


STATISTICS: dict[str, Callable[[Array], Array]] = {
    "peak": lambda paths: np.asarray(paths.max(-1)),
    "trough": lambda paths: np.asarray(paths.min(-1)),
    "total": lambda paths: np.asarray(paths.sum(-1)),
    "mean": lambda paths: np.asarray(paths.mean(-1)),
}
