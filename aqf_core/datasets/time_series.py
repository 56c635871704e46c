"""Time series for the forecasting experiments: files, a CSV of one's own, simulated loads."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import AQFError
from ..validation import lookup
from .loads import simulate_loads
from .table import DataError
from .uci import data_root

__all__ = [
    "TIME_SERIES",
    "TimeSeries",
    "available_time_series",
    "load_time_series",
    "read_time_series",
]

# Loads of one country each; the file also holds regions, sums and offshore parts of them.
COUNTRY_ONSHORE = re.compile(r"[A-Z]{2}_wind_onshore_generation_actual")


@dataclass(frozen=True)
class TimeSeries:
    """Several series of equal length.

    Attributes:
        name: what reports call them.
        frame: wide DataFrame, a row per time stamp.
        windows: forecast origins per series that an experiment tests, one horizon apart.
        about: where the series come from and which part of them is used.
        apart: how many of the last windows are scored by themselves.
        why_apart: the reason.
    """

    name: str
    frame: Any
    windows: int
    about: str
    apart: int = 0
    why_apart: str = ""

    @property
    def fingerprint(self) -> str:
        """Changes when the data change, so that stored results are not mixed up."""
        values = np.ascontiguousarray(self.frame.to_numpy(np.float64))
        stamps = ",".join(map(str, [*self.frame.columns, *self.frame.index[[0, -1]]]))
        return f"{zlib.crc32(values.tobytes(), zlib.crc32(stamps.encode())):08x}"


def _electricity(path: Path) -> TimeSeries:
    frame = _wide(path)
    about = f"hourly load (kW) of {frame.shape[1]} clients, {_span(frame)}"
    why = (
        "25-31 December: Christmas, of which the quarter of a year before holds no example, halves "
        "the load for a day and is yesterday's value the day after"
    )
    return TimeSeries("electricity", frame, 28, about, 7, why)


def _etth1(path: Path) -> TimeSeries:
    frame = _wide(path)
    about = (
        f"six hourly loads and the oil temperature of an electricity transformer, {_span(frame)}"
    )
    return TimeSeries("ettH1", frame, 112, about)


def _wind(path: Path) -> TimeSeries:
    frame = _wide(path)
    kept = [c for c in frame.columns if COUNTRY_ONSHORE.fullmatch(c)]
    frame = frame[kept].iloc[-8760:]
    frame.columns = [c[:2] for c in kept]
    about = (
        f"hourly onshore wind generation (MW) of {len(kept)} European countries, the last year of "
        f"the file: {_span(frame)}"
    )
    return TimeSeries("wind", frame, 56, about)


@dataclass(frozen=True)
class Source:
    """A file below the data root, and how it is read."""

    file: str
    read: Callable[[Path], TimeSeries]


TIME_SERIES: dict[str, Source | None] = {
    "electricity": Source("electricity/electricity_2014Q4_hourly_327clients.csv.gz", _electricity),
    "ettH1": Source("timeseries/ETTh1.csv", _etth1),
    "wind": Source("timeseries/europe_power_system_wind.csv.gz", _wind),
    "simulated": None,
}


def available_time_series(root: str | Path | None = None) -> list[str]:
    """Names of the data sets whose files are there.

    Example:
        >>> available_time_series("/nowhere")
        []
    """
    files = {name: source.file for name, source in TIME_SERIES.items() if source is not None}
    return [name for name, file in files.items() if (data_root(root) / file).is_file()]


def load_time_series(name: str, root: str | Path | None = None) -> TimeSeries:
    """One of the data sets `TIME_SERIES`.

    Args:
        name: "electricity", "ettH1", "wind", or "simulated", which needs no file.
        root: folder of data, see `data_root`.

    Example:
        >>> load_time_series("simulated").frame.shape
        (1680, 24)
        >>> load_time_series("wind", "/nowhere")
        Traceback (most recent call last):
        ...
        aqf_core.datasets.table.DataError: wind is read from /nowhere/timeseries/europe_power_...
    """
    source = lookup(name, TIME_SERIES, "time series")
    if source is None:
        return _simulated()
    path = data_root(root) / source.file
    if not path.is_file():
        raise DataError(
            f"{name} is read from {path}, which does not exist; say where the data are with "
            "--data-root or AQF_DATA, or choose the data set simulated."
        )
    return source.read(path)


def read_time_series(path: str | Path, windows: int = 14) -> TimeSeries:
    """Read a CSV file: the first column holds time stamps, every other column a series.

    A file with one column of names, one of time stamps and one of values is read as a long table.

    Args:
        path: of the file; empty cells are missing values.
        windows: see `TimeSeries`.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}; pass the path of a CSV file.")
    import pandas as pd

    from ..forecasting.frames import split_frame

    try:
        frame = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no regular table: {error}.") from None
    dates = next((c for c in frame.columns if _is_dates(frame[c])), None)
    if dates is None:
        raise DataError(f"{path} has no column of time stamps; add one.")
    frame[dates] = pd.to_datetime(frame[dates])
    try:
        parts, _ = split_frame(frame, None)
        whole = pd.DataFrame(parts)
    except AQFError:
        raise
    except ValueError as error:
        raise DataError(f"{path} repeats time stamps within a series: {error}.") from None
    about = f"{whole.shape[1]} series of the file {path.name}, {_span(whole)}"
    return TimeSeries(path.stem, whole, windows, about)


def _is_dates(column: Any) -> bool:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return False
    try:
        pd.to_datetime(column.head(100))
    except (ValueError, TypeError):
        return False
    return True


def _wide(path: Path) -> Any:
    import pandas as pd

    try:
        return pd.read_csv(path, index_col=0, parse_dates=True)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table of time series: {error}.") from None


def _simulated() -> TimeSeries:
    import pandas as pd

    loads = simulate_loads()
    index = pd.date_range("2024-01-01", periods=loads.shape[1], freq="h", name="time")
    frame = pd.DataFrame(loads.T, index, [f"client {i + 1}" for i in range(len(loads))])
    about = f"{len(loads)} simulated hourly loads, {_span(frame)}; see `simulate_loads`"
    return TimeSeries("simulated", frame, 14, about)


def _span(frame: Any) -> str:
    first, last = frame.index[0], frame.index[-1]
    return f"{len(frame):,} steps from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
