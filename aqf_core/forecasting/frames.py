"""pandas frames in and out: which shape they have, and forecasts in the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import SeriesError

__all__ = ["Layout", "is_frame", "is_pandas_series", "split_frame"]


@dataclass(frozen=True)
class Layout:
    """How series were given.

    Attributes:
        kind: "array" (also lists and dicts), "wide" or "long".
        id, time, value: names of the columns of a long frame; `time` is also that of a wide one.
    """

    kind: str = "array"
    id: Any = "series"
    time: Any = "time"
    value: Any = "value"

    def frame(
        self,
        names: Sequence[Any],
        stamps: Sequence[NDArray[np.datetime64]],
        table: NDArray[np.float64],
        columns: Sequence[Any],
    ) -> Any:
        """Forecasts as a frame like the one that was given.

        Args:
            names: of the S series.
            stamps: time stamps (H,) of each forecast.
            table: numbers (S, H, K).
            columns: what the K numbers are.

        Returns:
            Wide: a row per time stamp, columns (series, column); without second level if K is 1
            and its name is None. Long, also if a series occurs several times: columns id, time
            and one per number.
        """
        import pandas as pd

        if self.kind == "long" or len(set(names)) < len(names):
            rows = [
                pd.DataFrame(table[i], columns=[self.value if c is None else c for c in columns])
                .assign(__id=[name] * len(stamps[i]), __time=stamps[i])
                .rename(columns={"__id": self.id, "__time": self.time})
                for i, name in enumerate(names)
            ]
            whole = pd.concat(rows, ignore_index=True)
            ends = [self.id, self.time]
            return whole[[*ends, *[c for c in whole.columns if c not in ends]]]
        parts = {}
        for i, name in enumerate(names):
            index = pd.DatetimeIndex(stamps[i], name=self.time)
            for k, column in enumerate(columns):
                key = name if column is None else (name, column)
                parts[key] = pd.Series(table[i, :, k], index=index)
        return pd.DataFrame(parts).rename_axis(index=self.time)


def is_frame(data: Any) -> bool:
    """Whether this is a pandas DataFrame, without importing pandas."""
    return hasattr(data, "iloc") and hasattr(data, "columns")


def is_pandas_series(data: Any) -> bool:
    """Whether this is a pandas Series, without importing pandas."""
    return hasattr(data, "iloc") and not hasattr(data, "columns")


def split_frame(frame: Any, columns: Mapping[str, str] | None) -> tuple[dict[Any, Any], Layout]:
    """One pandas Series per series of a wide or long frame, and the layout of the frame."""
    from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

    if frame.empty:
        raise SeriesError("the frame is empty; pass at least one series.")
    dated = [c for c in frame.columns if is_datetime64_any_dtype(frame[c])]
    if columns is not None or len(dated) == 1:
        others = [c for c in frame.columns if c not in dated]
        named = dict(columns or {})
        time = named.get("time", dated[0] if dated else None)
        numeric = [c for c in others if is_numeric_dtype(frame[c])]
        if not named and len(numeric) == len(others) and not _looks_like_ids(frame, others, time):
            return split_frame(frame.set_index(time), None)
        return _split_long(frame, named, others, time)
    if not (hasattr(frame.index, "to_timestamp") or is_datetime64_any_dtype(frame.index)):
        raise SeriesError(
            "the frame has no time stamps; give it a DatetimeIndex or one column of dates (see "
            "pandas.to_datetime), or pass its values as an array with freq."
        )
    if frame.columns.has_duplicates:
        name = frame.columns[frame.columns.duplicated()][0]
        raise SeriesError(f"the frame has several columns named {name!r}; rename all but one.")
    text = [c for c in frame.columns if not is_numeric_dtype(frame[c])]
    if text:
        raise SeriesError(f"column {text[0]!r} is not numeric; drop it, or name columns=.")
    time = frame.index.name if frame.index.name is not None else "time"
    # A series may begin later than the others; all forecasts start after the last row.
    parts = {c: frame[c].loc[_first(frame[c]) :] for c in frame.columns}
    return parts, Layout("wide", time=time)


def _first(column: Any) -> Any:
    first = column.first_valid_index()
    if first is None:
        raise SeriesError(f"series {column.name!r} has no value at all; drop it.")
    return first


def _looks_like_ids(frame: Any, others: list[Any], time: Any) -> bool:
    """Whether time stamps repeat, but never within one value of the first other column."""
    if len(others) != 2 or not frame[time].duplicated().any():
        return False
    return not frame.duplicated([others[0], time]).any()


def _split_long(
    frame: Any, named: dict[str, str], others: list[Any], time: Any
) -> tuple[dict[Any, Any], Layout]:
    unknown = [c for c in named.values() if c not in frame.columns]
    if unknown or set(named) - {"id", "time", "value"}:
        wrong = unknown[0] if unknown else sorted(set(named) - {"id", "time", "value"})[0]
        raise SeriesError(
            f"columns= names {wrong!r}, which is unknown; it takes id, time and value, and the "
            f"frame has {', '.join(map(str, frame.columns))}."
        )
    rest = [c for c in others if c not in named.values()]
    value = named.get("value", rest[-1] if rest else None)
    ids = named.get("id", next((c for c in rest if c != value), None))
    if time is None or value is None or (len(rest) > 2 and len(named) < 3):
        raise SeriesError(
            "a long frame needs one column of names, one of time stamps and one of values; say "
            "which with columns={'id': ..., 'time': ..., 'value': ...}."
        )
    if ids is None:
        return {value: frame.set_index(time)[value]}, Layout("long", "series", time, value)
    parts = {name: part.set_index(time)[value] for name, part in frame.groupby(ids, sort=False)}
    return parts, Layout("long", ids, time, value)
