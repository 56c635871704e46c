"""Data for experiments: tables from files, tables that scikit-learn brings, generated problems.

Reading tables needs pandas, the bundled ones scikit-learn; both are imported when they are needed.
"""

from .bundled import BUNDLED, load_bundled
from .chain import Chain
from .loads import simulate_loads
from .noise import NOISES, NoiseProblem
from .table import DataError, Table, read_csv
from .time_series import TIME_SERIES, TimeSeries, load_time_series, read_time_series
from .uci import UCI, available, data_root, load_uci

__all__ = [
    "BUNDLED",
    "NOISES",
    "TIME_SERIES",
    "UCI",
    "Chain",
    "DataError",
    "NoiseProblem",
    "Table",
    "TimeSeries",
    "available",
    "data_root",
    "load_bundled",
    "load_time_series",
    "load_uci",
    "read_csv",
    "read_time_series",
    "simulate_loads",
]
