"""Time series as a forecaster sees them, read from arrays or pandas frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import SeriesError
from .frames import Layout, is_frame, is_pandas_series, split_frame
from .frequency import Frequency, check_grid, check_increasing, infer_frequency, parse_frequency

__all__ = ["SeriesSet", "read_covariates", "read_series"]

Array = NDArray[np.float64]

# Where series without time stamps are put: a Monday.
EPOCH = np.datetime64("2001-01-01T00:00:00")
# Steps up to which holes in the time stamps are filled with missing values.
LONGEST = 50_000_000


@dataclass(frozen=True)
class SeriesSet:
    """Several series on one kind of time grid.

    Attributes:
        values: one array (T_i,) per series, NaN where missing.
        names: of the series.
        starts: time stamp of each first value.
        frequency: of all series.
        covariates: one array (T_i + future_i, C) per series, or None.
        layout: how the series were given, so that forecasts can be given back alike.
    """

    values: list[Array]
    names: list[Any]
    starts: list[np.datetime64]
    frequency: Frequency
    covariates: list[Array] | None = None
    layout: Layout = field(default_factory=Layout)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of steps T_i of each series."""
        return np.array([len(v) for v in self.values], dtype=np.int64)

    def label(self, i: int) -> str:
        """What errors call a series."""
        return f"series {self.names[i]!r}"

    def cut(self, lengths: Sequence[int] | NDArray[np.int64]) -> SeriesSet:
        """The first lengths[i] steps of each series; covariates stay whole."""
        return replace(self, values=[v[:n] for v, n in zip(self.values, lengths, strict=True)])


def read_series(
    series: Any,
    covariates: Any = None,
    freq: str | Frequency | None = None,
    columns: Mapping[str, str] | None = None,
) -> SeriesSet:
    """Read series in any of the accepted forms.

    Args:
        series: an array (T,) or (S, T), a list of arrays of any lengths, a dict of arrays or of
            pandas Series; a wide DataFrame (a row per time stamp, a column per series); or a long
            one with a column of names, one of time stamps and one of values. Missing values are
            NaN; rows that are left out of a regular grid are missing values, too.
        covariates: numbers known in advance, for all series together (T + future, C) or (C columns
            of a frame with time stamps), or a list or dict with one array per series.
        freq: pandas name of the frequency; read from time stamps if there are any, else "h".
        columns: {"id": ..., "time": ..., "value": ...}: which columns of a long frame to read.

    Example:
        >>> data = read_series({"a": [1.0, 2.0, 3.0], "b": [5.0, float("nan")]}, freq="D")
        >>> data.names, data.lengths
        (['a', 'b'], array([3, 2]))
    """
    layout = Layout()
    if is_frame(series):
        named, layout = split_frame(series, columns)
    elif isinstance(series, Mapping):
        named = dict(series)
    elif is_pandas_series(series):
        named = {series.name if series.name is not None else 0: series}
    else:
        named = dict(enumerate(_rows(series)))
    if not named:
        raise SeriesError("there is no series to read; pass at least one.")
    values, starts, kinds = [], [], []
    given = None if freq is None else parse_frequency(freq)
    for name, one in named.items():
        value, start, kind = _read_one(one, f"series {name!r}", given)
        values.append(value)
        starts.append(start)
        kinds.append(kind)
    known = [kind for kind in kinds if kind is not None]
    if len(set(known)) > 1:
        both = ", ".join(sorted({str(kind) for kind in known}))
        raise SeriesError(f"the series have different frequencies ({both}); fit a model for each.")
    frequency = given or (known[0] if known else parse_frequency("h"))
    data = SeriesSet(values, list(named), starts, frequency, layout=layout)
    if covariates is None:
        return data
    return replace(data, covariates=read_covariates(covariates, data))


def _rows(series: Any) -> list[Any]:
    if isinstance(series, (list, tuple)) and series and np.ndim(series[0]) > 0:
        return list(series)
    try:
        array = np.asarray(series, dtype=np.float64)
    except (TypeError, ValueError):
        raise SeriesError(
            "series must be numbers: an array (T,) or (S, T), a list of arrays, a dict or a pandas "
            f"frame, got {type(series).__name__}."
        ) from None
    if array.ndim not in (1, 2) or array.size == 0:
        raise SeriesError(f"series must be an array (T,) or (S, T), got shape {array.shape}.")
    return list(np.atleast_2d(array))


def _read_one(
    one: Any, label: str, frequency: Frequency | None
) -> tuple[Array, np.datetime64, Frequency | None]:
    """Values on a complete grid, the first time stamp, the frequency if it is known."""
    stamps = None
    if is_pandas_series(one):
        stamps = _stamps(one.index, label)
    try:
        values = np.array(one, dtype=np.float64)
    except (TypeError, ValueError):
        raise SeriesError(f"{label} holds something that is no number; convert it first.") from None
    if values.ndim != 1 or len(values) == 0:
        raise SeriesError(f"{label} must be a non-empty list of numbers, got shape {values.shape}.")
    if np.isinf(values).any():
        raise SeriesError(f"{label} holds infinite values; mark missing values by NaN instead.")
    if stamps is None:
        return values, EPOCH, frequency
    frequency = frequency or infer_frequency(stamps, label)
    check_increasing(stamps, label)
    check_grid(frequency, stamps, label)
    place = np.round(frequency.steps_between(stamps[0], stamps)).astype(np.int64)
    if place[-1] >= LONGEST:
        raise SeriesError(
            f"{label} spans {place[-1]:,} steps of {frequency}; pass a lower frequency."
        )
    whole = np.full(int(place[-1]) + 1, np.nan)
    whole[place] = values
    return whole, stamps[0], frequency


def _stamps(index: Any, label: str) -> NDArray[np.datetime64] | None:
    """Time stamps of a pandas index; None if it only counts rows."""
    if hasattr(index, "to_timestamp"):
        index = index.to_timestamp()
    if getattr(index, "tz", None) is not None:
        index = index.tz_convert("UTC").tz_localize(None)
    array = np.asarray(index)
    if not np.issubdtype(array.dtype, np.datetime64):
        return None
    if np.isnat(array).any():
        raise SeriesError(f"{label} has a missing time stamp; drop that row.")
    return array.astype("datetime64[s]")


def read_covariates(covariates: Any, data: SeriesSet) -> list[Array]:
    """One array (T_i + future, C) per series; see `read_series`."""
    if isinstance(covariates, Mapping):
        absent = [name for name in data.names if name not in covariates]
        if absent:
            raise SeriesError(f"covariates have no entry for series {absent[0]!r}; add one.")
        each = [covariates[name] for name in data.names]
    elif isinstance(covariates, (list, tuple)):
        if len(covariates) != len(data):
            raise SeriesError(
                f"there are {len(data)} series, but covariates for {len(covariates)}; pass one "
                "array for all, or one for each."
            )
        each = list(covariates)
    else:
        each = [covariates] * len(data)
    arrays = [_covariates_of(one, data, i) for i, one in enumerate(each)]
    if len({a.shape[1] for a in arrays}) > 1:
        raise SeriesError("all series need the same number of covariates.")
    return arrays


def _covariates_of(one: Any, data: SeriesSet, i: int) -> Array:
    """Covariates (T_i + future, C) of series i, aligned with its time stamps if there are any."""
    label = f"the covariates of {data.label(i)}"
    stamps = _stamps(one.index, label) if hasattr(one, "index") and hasattr(one, "loc") else None
    array = np.array(one, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise SeriesError(f"{label} must be (steps, covariates), got shape {array.shape}.")
    if stamps is not None:
        check_increasing(stamps, label)
        steps = data.frequency.steps_between(data.starts[i], stamps)
        place = np.round(steps)
        if not (np.abs(steps - place) < 1e-9).all():
            raise SeriesError(f"the time stamps of {label} do not fit those of the series.")
        array, place = array[place >= 0], place[place >= 0].astype(np.int64)
        if not np.array_equal(place, np.arange(len(place))):
            raise SeriesError(f"{label} leave out time stamps; give one row for each step.")
    need = len(data.values[i])
    if len(array) < need:
        raise SeriesError(f"{label} have {len(array)} steps, but the series has {need}; add rows.")
    if not np.isfinite(array).all():
        raise SeriesError(f"{label} hold missing or infinite values; fill them.")
    return array
