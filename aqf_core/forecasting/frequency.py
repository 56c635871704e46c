"""Regular time grids: how far apart the steps of a series are, and what follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnknownNameError
from .errors import SeriesError

__all__ = ["Frequency", "infer_frequency", "parse_frequency"]

Stamps = NDArray[np.datetime64]

SECONDS = {"s": 1, "min": 60, "h": 3600, "D": 86400, "W": 7 * 86400}
MONTHS = {"M": 1, "Q": 3, "Y": 12}
ALIASES = {
    "S": "s", "T": "min", "t": "min", "m": "min", "MIN": "min", "H": "h", "d": "D", "w": "W",
    "MS": "M", "ME": "M", "QS": "Q", "QE": "Q", "YS": "Y", "YE": "Y", "A": "Y", "AS": "Y",
}  # fmt: skip
DAY = 86400


@dataclass(frozen=True)
class Frequency:
    """The distance of neighbouring time stamps: so many seconds, or so many months.

    Example:
        >>> Frequency(seconds=900).lags(), Frequency(months=1).lags()
        ((96, 192, 672), (12, 24))
    """

    seconds: int = 0
    months: int = 0

    def __str__(self) -> str:
        units = MONTHS if self.months else SECONDS
        size = self.months or self.seconds
        unit = max((u for u in units if size % units[u] == 0), key=units.__getitem__)
        count = size // units[unit]
        return unit if count == 1 else f"{count}{unit}"

    @property
    def season(self) -> int:
        """Steps after which a series is most alike: a day, a week, a year."""
        return self.lags()[0]

    def lags(self) -> tuple[int, ...]:
        """Which earlier values are inputs by default, in steps."""
        if self.months:
            year = max(1, 12 // self.months)
            return (year, 2 * year)
        if self.seconds >= SECONDS["W"]:
            return (52,)
        if self.seconds >= DAY:
            return (7, 14, 28)
        # Faster than once a minute, an hour is the season; otherwise a day.
        cycle = DAY if self.seconds >= 60 else 3600
        step = max(2, round(cycle / self.seconds))
        return (step, 2 * step, 7 * step)

    def context(self) -> int:
        """Steps of history that the network reads by default."""
        if self.months or self.seconds >= SECONDS["W"]:
            # Years have no season of their own; a dozen show cycles and trends.
            return (2 * self.season if self.season > 1 else 12) if self.months else 26
        return min(7 * self.season, 336)

    def range(self, start: np.datetime64, steps: int, first: int = 0) -> Stamps:
        """Time stamps first, first + 1, ..., first + steps - 1 after `start`.

        Example:
            >>> Frequency(months=1).range(np.datetime64("2024-01-31"), 3).astype("datetime64[D]")
            array(['2024-01-31', '2024-02-29', '2024-03-31'], dtype='datetime64[D]')
        """
        start = start.astype("datetime64[s]")
        count = np.arange(first, first + steps)
        if not self.months:
            even: Stamps = start + (count * self.seconds).astype("timedelta64[s]")
            return even
        month = start.astype("datetime64[M]")
        targets = month + count * np.timedelta64(self.months, "M")
        last = (targets + 1).astype("datetime64[D]") - targets.astype("datetime64[D]")
        day = (start - month).astype("timedelta64[D]")
        length = (month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")
        # The last day of a month stays the last day.
        days = last - np.timedelta64(1, "D") if day + 1 == length else np.minimum(day, last - 1)
        time = (start - month) - day
        stamps: Stamps = targets.astype("datetime64[s]") + days + time
        return stamps

    def steps_between(self, start: np.datetime64, stamps: Stamps) -> NDArray[np.float64]:
        """How many steps each stamp lies after `start`; fractions are off the grid."""
        start, stamps = start.astype("datetime64[s]"), stamps.astype("datetime64[s]")
        if not self.months:
            return (stamps - start).astype(np.int64) / self.seconds
        months = stamps.astype("datetime64[M]") - start.astype("datetime64[M]")
        steps = months.astype(np.int64) / self.months
        whole = np.round(steps).astype(int)
        lowest = int(whole.min(initial=0))
        grid = self.range(start, int(whole.max(initial=0)) - lowest + 1, lowest)
        return np.where(grid[whole - lowest] == stamps, steps, np.nan)


def parse_frequency(name: str | Frequency) -> Frequency:
    """A frequency by its pandas name, for example "h", "15min", "D", "W-SUN", "MS".

    Example:
        >>> parse_frequency("30min").seconds, str(parse_frequency("QS"))
        (1800, 'Q')
        >>> parse_frequency("fortnight")
        Traceback (most recent call last):
        ...
        aqf_core.errors.UnknownNameError: unknown frequency 'fortnight'; ...
    """
    if isinstance(name, Frequency):
        return name
    match = re.fullmatch(r"\s*(\d*)\s*([A-Za-z]+)(-[A-Za-z]+)?\s*", str(name))
    if match:
        unit = ALIASES.get(match[2], match[2])
        count = int(match[1] or 1)
        if count and unit in SECONDS:
            return Frequency(seconds=count * SECONDS[unit])
        if count and unit in MONTHS:
            return Frequency(months=count * MONTHS[unit])
    raise UnknownNameError(
        f"unknown frequency {name!r}; choose a number and one of s, min, h, D, W, M, Q, Y, for "
        "example '15min' or 'h'."
    )


def infer_frequency(stamps: Any, name: str = "the series") -> Frequency:
    """The frequency of increasing time stamps, some of which may be left out.

    Args:
        stamps: datetime64 (T,), T >= 3.
        name: of the series, for errors.

    Raises:
        SeriesError: if the stamps are too few, repeated, out of order or not on a regular grid.

    Example:
        >>> str(infer_frequency(np.array(["2024-01-01T00", "2024-01-01T01", "2024-01-01T04"],
        ...                              dtype="datetime64[h]")))
        'h'
    """
    stamps = np.asarray(stamps).astype("datetime64[s]")
    if len(stamps) < 3:
        raise SeriesError(
            f"{name} has {len(stamps)} time stamps, too few to tell the frequency; pass freq."
        )
    check_increasing(stamps, name)
    gaps = np.diff(stamps).astype(np.int64)
    least = int(gaps.min())
    if least < 28 * DAY:
        frequency = Frequency(seconds=least)
    else:
        months = np.diff(stamps.astype("datetime64[M]")).astype(np.int64)
        frequency = Frequency(months=int(months.min()))
    check_grid(frequency, stamps, name)
    return frequency


def check_increasing(stamps: Stamps, name: str) -> None:
    """Refuse repeated and unordered time stamps."""
    gaps = np.diff(stamps)
    if (gaps == np.timedelta64(0)).any():
        twice = stamps[1:][gaps == np.timedelta64(0)][0]
        raise SeriesError(f"{name} has the time stamp {twice} twice; keep one value per stamp.")
    if (gaps < np.timedelta64(0)).any():
        raise SeriesError(f"the time stamps of {name} are not in order; sort them.")


def check_grid(frequency: Frequency, stamps: Stamps, name: str) -> None:
    """Refuse time stamps that are not a whole number of steps apart."""
    steps = frequency.steps_between(stamps[0], stamps)
    off = ~(np.abs(steps - np.round(steps)) < 1e-9)
    if off.any():
        raise SeriesError(
            f"the time stamps of {name} are irregular: {stamps[off][0]} is not a whole number of "
            f"steps ({frequency}) after {stamps[0]}; resample the series to a regular grid."
        )
