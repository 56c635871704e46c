"""The four calendar covariates of a time step: age, hour, weekday and month."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .frequency import Frequency, Stamps

__all__ = ["CALENDARS", "calendar_features"]

CALENDARS = ("cyclic", "linear")
# Until a year has been seen, the month of a forecast may be one that training never saw.
YEAR = 365 * 86400

Features = NDArray[np.float32]


def calendar_features(
    frequency: Frequency, stamps: Stamps, first: int, kind: str = "cyclic", month: bool = True
) -> Features:
    """Age, hour, weekday and month of each step, (T, 13) or (T, 4) numbers of order 1.

    "linear" gives each covariate as one centred number, as the paper does. "cyclic" replaces hour,
    weekday and month by sines and cosines (two, three and one harmonics), in which midnight and
    the end of a week are no jumps. The age enters as a logarithm, so that it hardly moves beyond
    the training span.

    Args:
        frequency: of the series.
        stamps: time stamps (T,).
        first: age of the first stamp in steps; negative ages count as 0.
        kind: "cyclic" or "linear".
        month: False replaces the month by zeros.

    Example:
        >>> stamps = Frequency(seconds=3600).range(np.datetime64("2024-01-01"), 48)
        >>> calendar_features(Frequency(seconds=3600), stamps, 0).shape
        (48, 13)
    """
    stamps = stamps.astype("datetime64[s]")
    day = stamps.astype("datetime64[D]")
    hour = (stamps - day).astype(np.int64) / 3600
    weekday = (day.astype(np.int64) + 3) % 7  # day 0 was a Thursday
    months = stamps.astype("datetime64[M]").astype(np.int64) % 12
    age = np.log1p(np.clip(np.arange(first, first + len(stamps)), 0, None))
    columns = [age / np.log(1000.0) - 1.0]
    if kind == "linear":
        columns += [hour / 6.9 - 1.66, weekday / 2 - 1.5, (months / 3.45 - 1.6) * month]
    else:
        columns += _waves(hour / 24, 2) + _waves(weekday / 7, 3)
        columns += [wave * month for wave in _waves(months / 12, 1)]
    return np.stack(columns, -1).astype(np.float32)


def _waves(turn: NDArray[np.float64], harmonics: int) -> list[NDArray[np.float64]]:
    angles = [2 * np.pi * k * turn for k in range(1, harmonics + 1)]
    return [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
