"""Data for experiments: tables from files, tables that scikit-learn brings, generated problems.

Reading tables needs pandas, the bundled ones scikit-learn; both are imported when they are needed.
"""

from .bundled import BUNDLED, load_bundled
from .chain import Chain
from .noise import NOISES, NoiseProblem
from .table import DataError, Table, read_csv
from .uci import UCI, available, data_root, load_uci

__all__ = [
    "BUNDLED",
    "NOISES",
    "UCI",
    "Chain",
    "DataError",
    "NoiseProblem",
    "Table",
    "available",
    "data_root",
    "load_bundled",
    "load_uci",
    "read_csv",
]
