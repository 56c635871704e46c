"""A table of features and targets, and how one is read from a CSV file."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import AQFError

__all__ = ["DataError", "Table", "Task", "read_csv", "read_header"]

Task = Literal["regression", "classification", "joint"]


class DataError(AQFError, ValueError):
    """A file of data is not what it should be."""


@dataclass(frozen=True)
class Table:
    """Features and what is to be predicted from them.

    Attributes:
        name: what reports call it.
        X: DataFrame (n, p); columns of text are of pandas' dtype `category`.
        y: targets (n,), labels 0 and 1 for classification, or (n, d) for a joint distribution.
        task: "regression", "classification" or "joint".
        classes: what the labels 0 and 1 mean.
    """

    name: str
    X: Any
    y: NDArray[np.float64]
    task: Task
    classes: tuple[str, str] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def fingerprint(self) -> str:
        """Changes when the data change, so that stored results are not mixed up."""
        text = self.X.to_csv(index=False, float_format="%.12g").encode()
        return f"{zlib.crc32(self.y.tobytes(), zlib.crc32(text)):08x}"


def read_csv(path: str | Path, targets: Sequence[str], task: Task | None = None) -> Table:
    """Read a table with a header line; all columns that are not targets are features.

    Args:
        path: file with commas, semicolons or tabs; empty cells are missing values.
        targets: one column name, or several for a joint distribution.
        task: by default "joint" for several targets, "classification" for a target with two
            values, else "regression".

    Raises:
        DataError: if the header names a column twice or not at all, or a target cannot be used.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "houses.csv"
        >>> _ = path.write_text("rooms,town,price\\n3,Ulm,2.5\\n4,Bonn,3.5\\n2,Ulm,1.5\\n")
        >>> table = read_csv(path, ["price"])
        >>> table.task, table.X.shape, table.y
        ('regression', (3, 2), array([2.5, 3.5, 1.5]))
    """
    import pandas as pd

    path = Path(path)
    header, separator = read_header(path)
    missing = [name for name in targets if name not in header]
    if missing or not targets:
        wanted = f"no column {missing[0]!r}" if missing else "no target"
        raise DataError(f"{path} has {wanted}; its columns are: {', '.join(header)}.")
    if len(set(targets)) < len(targets):
        raise DataError(f"the targets {', '.join(targets)} name a column twice; name it once.")
    if len(targets) == len(header):
        raise DataError(f"{path} has no column besides the targets; add features to predict from.")
    try:
        frame = pd.read_csv(path, sep=separator, skipinitialspace=True, encoding="utf-8-sig")
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no regular table: {error}.") from None
    frame.columns = header
    if frame.empty:
        raise DataError(f"{path} has a header but no rows.")
    for name in targets:
        empty = int(frame[name].isna().sum())
        if empty:
            raise DataError(f"column {name!r} of {path} has {empty} empty cells; drop these rows.")
    features = frame.drop(columns=list(targets))
    for name in features.columns:
        if not pd.api.types.is_numeric_dtype(features[name]):
            features[name] = features[name].astype("category")
        elif pd.api.types.is_bool_dtype(features[name]):
            features[name] = features[name].astype(float)
    return _table(path.stem, features, frame[list(targets)], task)


def read_header(path: Path) -> tuple[list[str], str]:
    """Column names of a CSV file, and what separates them: a comma, semicolon or tab."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; pass the path of a CSV file.")
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        line = file.readline()
    if not line.strip():
        raise DataError(f"{path} starts with an empty line; a CSV file starts with column names.")
    separator = max(",;\t", key=line.count)
    header = [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path} has several columns named {twice[0]!r}; rename all but one.")
    return header, separator


def _table(name: str, X: Any, targets: Any, task: Task | None) -> Table:
    if targets.shape[1] > 1:
        if task == "classification":
            raise DataError("classification has one target; name a single column.")
        values = np.column_stack([_numbers(targets[column]) for column in targets.columns])
        return Table(name, X, values, "joint")
    column = targets.iloc[:, 0]
    labels = sorted(column.unique().tolist())
    if task == "classification" or (task is None and len(labels) == 2):
        if len(labels) != 2:
            raise DataError(
                f"column {column.name!r} has {len(labels)} values, classification compares two; "
                "use regression for numbers."
            )
        codes = (column == labels[1]).to_numpy(dtype=np.float64)
        return Table(name, X, codes, "classification", (str(labels[0]), str(labels[1])))
    return Table(name, X, _numbers(column), "regression")


def _numbers(column: Any) -> NDArray[np.float64]:
    import pandas as pd

    numbers: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~np.isfinite(numbers)
    if bad.any():
        raise DataError(
            f"column {column.name!r} holds '{column[bad].iloc[0]}', which is no finite number; a "
            "target must be numeric or have two values."
        )
    if np.ptp(numbers) == 0:
        raise DataError(f"column {column.name!r} is {numbers[0]:g} in every row; choose another.")
    return numbers
