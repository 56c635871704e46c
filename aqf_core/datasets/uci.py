"""The UCI data sets of the paper, read from files in `<data root>/uci`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..validation import lookup
from .spreadsheet import read_sheet
from .table import DataError, Table, Task

__all__ = ["UCI", "available", "data_root", "load_uci"]


@dataclass(frozen=True)
class Source:
    """One data set: its file, its size, and how the file is read.

    Attributes:
        file: name in the folder `uci`.
        rows, features: what the complete file holds.
        task: see `Table`.
        read: path -> array of numbers whose last columns are the targets.
        targets: number of target columns.
    """

    file: str
    rows: int
    features: int
    task: Task
    read: Callable[[Path], NDArray[np.float64]]
    targets: int = 1


def _plain(path: Path) -> NDArray[np.float64]:
    return np.loadtxt(path, ndmin=2)


def _commas(path: Path) -> NDArray[np.float64]:
    return np.loadtxt(path, delimiter=",", ndmin=2)


def _arff(path: Path) -> NDArray[np.float64]:
    """The data section of an ARFF file without sparse rows; yes and no become 1 and 0."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    start = [line.lower() for line in lines].index("@data") + 1
    words = {"yes": "1", "no": "0", "true": "1", "false": "0", "?": "nan"}
    rows = [
        [words.get(cell.strip().lower(), cell) for cell in line.split(",")]
        for line in lines[start:]
        if line and not line.startswith("%")
    ]
    return np.array(rows, dtype=np.float64)


def _workbook(path: Path) -> NDArray[np.float64]:
    return np.array(read_sheet(path)[1:], dtype=np.float64)


UCI: dict[str, Source] = {
    "yacht": Source("yacht.txt", 308, 6, "regression", _plain),
    "boston": Source("boston.txt", 506, 13, "regression", _plain),
    "concrete": Source("concrete.txt", 1030, 8, "regression", _plain),
    "energy": Source("energy.txt", 768, 8, "regression", _plain),
    "diabetes": Source("pima-indians-diabetes.csv", 768, 8, "classification", _commas),
    "kc2": Source("kc2.arff", 522, 21, "classification", _arff),
    "enb": Source("ENB2012_data.xlsx", 768, 8, "joint", _workbook, targets=2),
}


def data_root(given: str | Path | None = None) -> Path:
    """The folder of data: as given, else the environment variable AQF_DATA, else `data`.

    Example:
        >>> data_root("/big/disk")
        PosixPath('/big/disk')
    """
    return Path(given or os.environ.get("AQF_DATA") or "data")


def available(root: str | Path | None = None) -> list[str]:
    """Names of the data sets whose files are there.

    Example:
        >>> available("/nowhere")
        []
    """
    return [name for name, s in UCI.items() if (data_root(root) / "uci" / s.file).is_file()]


def load_uci(name: str, root: str | Path | None = None) -> Table:
    """Read one of the data sets `UCI`.

    Args:
        name: "yacht", "boston", "concrete", "energy" (regression), "diabetes", "kc2" (two classes)
            or "enb" (two targets).
        root: folder that holds `uci`, see `data_root`.

    Raises:
        DataError: if the file is missing or not the complete data set.

    Example:
        >>> load_uci("yacht", "/nowhere")
        Traceback (most recent call last):
        ...
        aqf_core.datasets.table.DataError: yacht is read from /nowhere/uci/yacht.txt, which does ...
    """
    import pandas as pd

    source = lookup(name, UCI, "data set")
    path = data_root(root) / "uci" / source.file
    if not path.is_file():
        raise DataError(
            f"{name} is read from {path}, which does not exist; download it from the UCI archive, "
            "or say where the data are with --data-root or AQF_DATA."
        )
    try:
        values = source.read(path)
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as the {name} data: {error}.") from None
    expected = (source.rows, source.features + source.targets)
    if values.shape != expected:
        raise DataError(
            f"{path} holds a table of {values.shape}, but the {name} data have {expected[0]} rows "
            f"and {expected[1]} columns; download it again."
        )
    X = pd.DataFrame(
        values[:, : -source.targets], columns=[f"x{k + 1}" for k in range(source.features)]
    )
    y: Any = values[:, -source.targets :]
    y = np.ascontiguousarray(y if source.targets > 1 else y[:, 0])
    return Table(name, X, y, source.task, ("0", "1") if source.task == "classification" else None)
