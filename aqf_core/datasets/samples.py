"""Rows without targets: what a generative model learns from, and how they are split."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .table import DataError, read_header

__all__ = ["Samples", "check_rows", "read_numbers", "split_rows"]

Array = NDArray[np.float32]
MIN_ROWS = 50


@dataclass(frozen=True)
class Samples:
    """Observations in three parts.

    Attributes:
        name: what reports call it.
        train: rows to learn from (n, d).
        validation: rows that training may look at, (n, d).
        test: rows for the final scores, (n, d).
        shape: shape of one observation: (d,), or (1, height, width) for images.
        columns: names of the variables; empty for images.
        grey: number of grey levels; images then hold whole numbers from 0 to grey - 1.
        unit: grey levels in one unit of scores; 1 for tables.
        labels: class of every image of the three parts, or None.
        mean, deviation: (d,), what was subtracted from a table and what it was divided by.
        remark: what a reader of results must know about the data.
    """

    name: str
    train: Array
    validation: Array
    test: Array
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    grey: int | None = None
    unit: float = 1.0
    labels: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = field(
        default=None, repr=False
    )
    mean: NDArray[np.float64] | None = field(default=None, repr=False)
    deviation: NDArray[np.float64] | None = field(default=None, repr=False)
    remark: str = ""

    def original(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows (n, d) in the units of the file they come from."""
        if self.mean is None or self.deviation is None:
            return rows
        restored: NDArray[Any] = rows * self.deviation + self.mean
        return restored

    @property
    def features(self) -> int:
        """Number of variables d."""
        return int(self.train.shape[1])

    @property
    def fingerprint(self) -> str:
        """Changes when the data change, so that stored results are not mixed up."""
        crc = 0
        for part in (self.train, self.validation, self.test):
            crc = zlib.crc32(np.ascontiguousarray(part).tobytes(), crc)
        return f"{crc:08x}"


def split_rows(
    rows: NDArray[np.generic], seed: int, validation: float = 0.1, test: float = 0.1
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Random indices of training, validation and test rows, with these shares held out.

    Example:
        >>> [len(part) for part in split_rows(np.zeros((100, 2)), seed=0)]
        [80, 10, 10]
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    tests, held = int(test * len(rows)), int(validation * len(rows))
    return order[tests + held :], order[tests : tests + held], order[:tests]


def check_rows(rows: NDArray[np.float64], columns: Sequence[str], source: str | Path) -> None:
    """Raise a `DataError` unless there are enough rows of finite, varying columns.

    Example:
        >>> check_rows(np.ones((60, 1)), ["a"], "t.csv")
        Traceback (most recent call last):
        ...
        aqf_core.datasets.table.DataError: column 'a' of t.csv is 1 in every row; drop it.
    """
    if len(rows) < MIN_ROWS:
        raise DataError(
            f"{source} has {len(rows)} rows; splitting it into three parts needs {MIN_ROWS}."
        )
    for j, name in enumerate(columns):
        bad = int((~np.isfinite(rows[:, j])).sum())
        if bad:
            raise DataError(
                f"column {name!r} of {source} has {bad} cells that are empty or infinite; drop "
                "these rows or fill them."
            )
        if np.ptp(rows[:, j]) == 0:
            raise DataError(f"column {name!r} of {source} is {rows[0, j]:g} in every row; drop it.")


def read_numbers(path: str | Path, seed: int = 0) -> Samples:
    """Read a CSV file whose columns are all numbers; a tenth each is held out twice.

    Values are standardised by mean and deviation of the training rows.

    Args:
        path: file with commas, semicolons or tabs and a header line.
        seed: of the split.

    Raises:
        DataError: if a cell is no finite number, a column is constant, or there are too few rows.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "points.csv"
        >>> lines = [f"{k},{k % 7}" for k in range(60)]
        >>> _ = path.write_text("\\n".join(["a,b", *lines]))
        >>> data = read_numbers(path)
        >>> data.train.shape, data.columns
        ((48, 2), ('a', 'b'))
    """
    import pandas as pd

    path = Path(path)
    header, separator = read_header(path)
    try:
        frame = pd.read_csv(path, sep=separator, skipinitialspace=True, header=None, skiprows=1)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} has a header but no rows.") from None
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no regular table: {error}.") from None
    if frame.shape[1] != len(header):
        raise DataError(
            f"{path} names {len(header)} columns, but its rows have {frame.shape[1]}; mend the "
            "header line."
        )
    frame.columns = header
    for name in header:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        text = numbers.isna() & frame[name].notna()
        if text.any():
            raise DataError(
                f"column {name!r} of {path} holds '{frame[name][text].iloc[0]}', which is no "
                "number; drop the column or encode it."
            )
        frame[name] = numbers
    rows = frame.to_numpy(np.float64)
    check_rows(rows, header, path)
    return standardised(path.stem, rows, split_rows(rows, seed), tuple(header))


def standardised(
    name: str,
    rows: NDArray[np.float64],
    parts: Sequence[NDArray[np.int64]],
    columns: tuple[str, ...],
    statistics: NDArray[np.int64] | None = None,
    remark: str = "",
) -> Samples:
    """Rows divided into parts, in units of the deviation of `statistics` (default: training)."""
    base = rows[parts[0] if statistics is None else statistics]
    mean, deviation = base.mean(0), base.std(0)
    if (deviation == 0).any():
        constant = columns[int(np.flatnonzero(deviation == 0)[0])]
        raise DataError(f"column {constant!r} of {name} is constant in the training rows; drop it.")
    train, validation, test = (
        ((rows[part] - mean) / deviation).astype(np.float32) for part in parts
    )
    return Samples(
        name,
        train,
        validation,
        test,
        (rows.shape[1],),
        columns,
        mean=mean,
        deviation=deviation,
        remark=remark,
    )
