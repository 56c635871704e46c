"""Cutting series into windows: what the network reads around a forecast origin.

A window with origin t covers the steps t - context, ..., t + horizon - 1. Its scale is the mean of
the non-zero absolute values of its context, by which everything the network reads and predicts is
divided, so that one network serves series of any size. Where changes are small beside the level,
these would be nearly equal numbers: windows are then centred, with the mean of their context as
location and its standard deviation as scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .calendar import YEAR, calendar_features
from .series import SeriesSet

__all__ = ["Batch", "WindowShape", "WindowSource"]

# Seasons whose median is the usual value of a step.
SEASONS = 7

Index = NDArray[np.int64]


@dataclass(frozen=True)
class WindowShape:
    """What a window looks like.

    Attributes:
        context: steps before the origin.
        horizon: steps from the origin on.
        lags: how many steps ago the further inputs are.
        season: how many steps ago the value is that stands in for an unknown one.
        calendar: how calendar covariates are encoded, see `calendar_features`.
        months: whether the month is used.
        offset: added to the scale of a window; 1 in the paper.
        unknown: number of the embedding for series that training did not see.
        marginals: where the distribution of a step comes from, see `Settings`.
        centred: whether windows are centred.
    """

    context: int
    horizon: int
    lags: tuple[int, ...]
    season: int
    calendar: str = "cyclic"
    months: bool = False
    offset: float = 0.0
    unknown: int = 0
    marginals: str = "both"
    centred: bool = False

    @property
    def history(self) -> int:
        """Steps before the origin that a window touches."""
        return self.context + max((*self.lags, *self.usual, 1))

    @property
    def usual(self) -> list[int]:
        """Lags whose median is the usual value: of the seven seasons that every step knows."""
        first = -(-self.horizon // self.season)
        return [self.season * k for k in range(first, first + SEASONS)]

    @property
    def n_past(self) -> int:
        """Number of past values read at each step."""
        return 2 + len(self.lags)


class Batch(NamedTuple):
    """B windows of L = context + horizon steps, values less the location of the window and divided
    by its scale.

    Attributes:
        target: (B, L).
        mask: (B, L), 1 where the target is known and counts.
        past: (B, L, 2 + number of lags), the previous value, the lagged ones and the usual one.
        known: (B, L, C), calendar, covariates and, last, whether the previous value was observed.
        ids: (B,), number of the embedding.
        scale: (B,).
        spread: (B,), mean distance of the context from the season before, in units of the scale.
        location: (B,), 0 unless windows are centred.
    """

    target: Tensor
    mask: Tensor
    past: Tensor
    known: Tensor
    ids: Tensor
    scale: Tensor
    spread: Tensor
    location: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(t.to(device) for t in self))


class WindowSource:
    """All windows of a set of series, as flat tensors from which batches are gathered.

    Missing values are replaced, for inputs only, by the value one lag before or by the mean so far;
    targets that are missing, and those whose longest lag lies before the beginning of the series,
    do not count.

    Args:
        data: the series; every origin from 1 to T_i is possible.
        shape: of a window.
        ids: number of the embedding of each series; unknown series by default.
        moments: mean and standard deviation (C,) of the covariates.
    """

    def __init__(
        self,
        data: SeriesSet,
        shape: WindowShape,
        ids: Sequence[int] | None = None,
        moments: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    ) -> None:
        self.data, self.shape = data, shape
        self.lengths = data.lengths
        self.ids = torch.tensor(list(ids) if ids is not None else [shape.unknown] * len(data))
        blocks = self.lengths + shape.history + shape.horizon
        self.starts = np.concatenate([[0], np.cumsum(blocks)[:-1]]) + shape.history
        total = int(blocks.sum())
        filled, seen = np.zeros(total), np.zeros(total, dtype=bool)
        counts = np.zeros(total, dtype=bool)
        known = []
        for i, values in enumerate(data.values):
            begin, length = int(self.starts[i]), len(values)
            inputs, present = _fill(values, shape.lags)
            # Before the beginning: the first value, which every origin knows.
            block = slice(begin - shape.history, begin + length + shape.horizon)
            filled[block] = inputs[0]
            filled[begin : begin + length] = inputs
            seen[begin : begin + length] = present
            late = min(max((*shape.lags, 1)), length // 3)
            counts[begin + late : begin + length] = present[late:]
            known.append(self._known(i, moments))
        self.filled = torch.from_numpy(filled)
        earlier = np.stack([np.roll(filled, lag) for lag in shape.usual])
        self.usual = torch.from_numpy(np.median(earlier, axis=0))
        self.seen, self.counts = torch.from_numpy(seen), torch.from_numpy(counts)
        self.known = torch.from_numpy(np.concatenate(known))
        size = np.abs(filled)
        # Of centred windows, from the first value of their series on, for the sake of rounding.
        first = np.repeat([v[~np.isnan(v)][:1].sum() for v in data.values], blocks)
        self._first = first[self.starts] if len(data) else first
        self._value = _Sums(filled - first, seen)
        self._square = _Sums((filled - first) ** 2, seen)
        change = np.abs(filled - np.roll(filled, shape.season))
        self._size = _Sums(size, seen & (size > 0))
        self._change = _Sums(change, seen & np.roll(seen, shape.season))

    def _known(
        self, i: int, moments: tuple[NDArray[np.float64], NDArray[np.float64]] | None
    ) -> NDArray[np.float32]:
        """Calendar and covariates of series i with its padding: (history + T + horizon, C)."""
        shape, length = self.shape, int(self.lengths[i])
        steps = shape.history + length + shape.horizon
        frequency = self.data.frequency
        stamps = frequency.range(self.data.starts[i], steps, -shape.history)
        features = calendar_features(
            frequency, stamps, -shape.history, shape.calendar, shape.months
        )
        if self.data.covariates is None or moments is None:
            return features
        extra = np.zeros((steps, len(moments[0])), dtype=np.float32)
        given = (self.data.covariates[i][: length + shape.horizon] - moments[0]) / moments[1]
        extra[shape.history : shape.history + len(given)] = given
        return np.concatenate([features, extra], 1)

    @property
    def n_known(self) -> int:
        """Number C of known inputs of a step."""
        return self.known.shape[1] + 1

    def scales(self, series: Index, origins: Index) -> NDArray[np.float64]:
        """Scale of each window: offset + mean of the non-zero |values| of its context, but at
        least a thousandth of their mean since the beginning; NaN if nothing was observed. Of
        centred windows the standard deviation, alike."""
        end, begin = self.starts[series] + origins, self.starts[series]
        if self.shape.centred:
            return self._deviations(series, begin, end)
        scale = self._size.mean(end - self.shape.context, end)
        whole = self._size.mean(begin, end)
        scale = np.fmax(scale, whole / 1000)
        zeros = np.isnan(scale)
        if zeros.any():  # zeros are observations, too
            rows = end[zeros][:, None] - np.arange(1, self.shape.context + 1)
            seen = self.seen.numpy()[rows].any(1)
            scale[zeros] = np.where(seen, 1.0 - self.shape.offset, np.nan)
        return scale + self.shape.offset

    def locations(self, series: Index, origins: Index) -> NDArray[np.float64]:
        """Mean of the context of each window if windows are centred, else 0."""
        if not self.shape.centred:
            return np.zeros(len(series))
        end = self.starts[series] + origins
        mean = self._value.mean(end - self.shape.context, end)
        return self._first[series] + np.where(np.isnan(mean), 0.0, mean)

    def _deviations(self, series: Index, begin: Index, end: Index) -> NDArray[np.float64]:
        context = self.shape.context

        def deviation(first: Index) -> NDArray[np.float64]:
            mean, square = self._value.mean(first, end), self._square.mean(first, end)
            rest: NDArray[np.float64] = np.sqrt(np.maximum(square - mean**2, 0.0))
            # What is left by rounding is no deviation.
            return np.where(rest > 1e-6 * np.sqrt(square), rest, 0.0 * rest)

        scale = np.fmax(deviation(end - context), deviation(begin) / 1000)
        # Of what never changed so far, as of a single value, only the size is known.
        size = 0.1 * self._size.mean(begin, end)
        size = np.where(np.isnan(size), 1.0, size)
        return np.where(scale == 0, size, scale)

    def spreads(self, series: Index, origins: Index) -> NDArray[np.float64]:
        """Mean |value - value a season before| over the context of each window, but at least a
        tenth of the mean since the beginning and a thousandth of the scale."""
        end, begin = self.starts[series] + origins, self.starts[series]
        scale = self.scales(series, origins)
        spread = self._change.mean(end - self.shape.context, end)
        spread = np.fmax(spread, 0.1 * self._change.mean(begin, end))
        return np.fmax(np.where(np.isnan(spread), 0.1 * scale, spread), scale / 1000)

    def training_windows(self, lengths: Index) -> tuple[Index, Index, NDArray[np.float64]]:
        """All windows whose horizon ends at most at lengths[i]: series, origins, scales.

        The context may reach before the beginning of a series, but not by more than half.
        """
        shape = self.shape
        series, origins = [], []
        for i, length in enumerate(lengths):
            first = max(1, min(shape.context // 2, int(length) - shape.horizon))
            last = int(length) - shape.horizon
            if last >= first:
                origins.append(np.arange(first, last + 1))
                series.append(np.full(last + 1 - first, i))
        if not series:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        chosen, starts = np.concatenate(series), np.concatenate(origins)
        scales = self.scales(chosen, starts)
        usable = np.isfinite(scales)
        return chosen[usable], starts[usable], scales[usable]

    def batch(
        self, series: Index, origins: Index, blind: NDArray[np.bool_] | bool = False
    ) -> Batch:
        """Gather windows.

        Args:
            series: number of the series of each window, (B,).
            origins: of the windows, (B,).
            blind: (B,), which windows do not look at anything from their origin on: instead of
                values that a forecast cannot know they read those of the season before, marked
                as not observed.
        """
        shape = self.shape
        origin = torch.from_numpy(self.starts[series] + origins)
        steps = torch.arange(-shape.context, shape.horizon)
        place = origin[:, None] + steps  # (B, L)
        scale = torch.from_numpy(self.scales(series, origins))
        location = torch.from_numpy(self.locations(series, origins))
        target = (self.filled[place] - location[:, None]) / scale[:, None]
        back = torch.tensor([1, *shape.lags])
        source = place[..., None] - back
        hidden = torch.as_tensor(blind).expand(len(origin))[:, None, None]
        late = (source - origin[:, None, None] + 1).clamp_min(0) * hidden
        seasons = torch.div(late + shape.season - 1, shape.season, rounding_mode="floor")
        past = self.filled[source - shape.season * seasons]
        past = torch.cat([past, self.usual[place][..., None]], -1)
        past = (past - location[:, None, None]) / scale[:, None, None]
        seen = (self.seen[place - 1] & (late[..., 0] == 0)).float()
        known = torch.cat([self.known[place], seen[..., None]], -1)
        mask = self.counts[place].float()
        ids = self.ids[torch.from_numpy(series)]
        spread = torch.from_numpy(self.spreads(series, origins)) / scale
        parts = (target, mask, past, known, spread)
        target, mask, past, known, spread = (part.float() for part in parts)
        return Batch(target, mask, past, known, ids, scale.float(), spread, location.float())


def months_seen(data: SeriesSet) -> bool:
    """Whether the longest series covers a year, so that no month of a forecast is new."""
    longest = int(data.lengths.argmax())
    stamps = data.frequency.range(data.starts[longest], int(data.lengths[longest]))
    return bool((stamps[-1] - stamps[0]).astype(np.int64) >= YEAR)


class _Sums:
    """Means of chosen entries over any span of a long array."""

    def __init__(self, values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> None:
        self.sum = np.concatenate([[0.0], np.cumsum(values * chosen)])
        self.count = np.concatenate([[0], np.cumsum(chosen)])

    def mean(self, begin: Index, end: Index) -> NDArray[np.float64]:
        """Mean of the chosen entries from `begin` to before `end`, NaN without any."""
        count = self.count[end] - self.count[begin]
        total: NDArray[np.float64] = self.sum[end] - self.sum[begin]
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _fill(
    values: NDArray[np.float64], lags: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values with missing ones replaced from their past, and where they were observed."""
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    if present.all() or not present.any():
        return filled, present
    mean = np.cumsum(filled) / np.maximum(np.cumsum(present), 1)
    first = int(present.argmax())
    mean[:first] = values[first]
    for t in np.flatnonzero(~present):
        lag = next((g for g in lags if t - g >= first), None)
        filled[t] = mean[t] if lag is None else filled[t - lag]
    return filled, present
