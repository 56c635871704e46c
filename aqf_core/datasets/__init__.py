"""Data for experiments: tables and images from files, those of scikit-learn, generated problems.

Reading tables needs pandas, the bundled ones scikit-learn; both are imported when they are needed.
"""

from .bundled import BUNDLED, load_bundled
from .chain import Chain
from .density import DENSITY, load_density
from .images import load_digit_images, load_mnist
from .loads import simulate_loads
from .noise import NOISES, NoiseProblem
from .samples import Samples, read_numbers
from .table import DataError, Table, read_csv
from .time_series import TIME_SERIES, TimeSeries, load_time_series, read_time_series
from .uci import UCI, available, data_root, load_uci

__all__ = [
    "BUNDLED",
    "DENSITY",
    "NOISES",
    "TIME_SERIES",
    "UCI",
    "Chain",
    "DataError",
    "NoiseProblem",
    "Samples",
    "Table",
    "TimeSeries",
    "available",
    "data_root",
    "load_bundled",
    "load_density",
    "load_digit_images",
    "load_mnist",
    "load_time_series",
    "load_uci",
    "read_csv",
    "read_numbers",
    "read_time_series",
    "simulate_loads",
]
