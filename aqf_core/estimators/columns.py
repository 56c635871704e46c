"""From a table to numbers: categories become codes, missing values stay NaN, both are checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns", "is_frame"]

Array = NDArray[Any]


def is_frame(X: Any) -> bool:
    """Whether X is a pandas DataFrame, without importing pandas."""
    return hasattr(X, "columns") and hasattr(X, "iloc") and hasattr(X, "dtypes")


def is_series(y: Any) -> bool:
    """Whether y is a pandas Series, without importing pandas."""
    return hasattr(y, "iloc") and hasattr(y, "index") and not hasattr(y, "columns")


class Columns:
    """Which columns are categories, and the categories that were seen in training.

    A column is categorical when pandas says so (dtype `category`) or when it is listed in
    `categorical_features`. Its values are replaced by the position of the value among the sorted
    categories of the training data; missing and unknown values become NaN, and so do those that a
    single row has: they would tell nothing but which row it is. All other columns must be numbers.

    Args:
        categorical_features: names or positions of categorical columns; None for none beyond
            pandas' own.

    Attributes:
        categories: for every column its categories (a list), or None for a number.

    Example:
        >>> rows = [["red", 1.5], ["blue", 2.0], ["blue", 1.0], ["red", 2.5], ["pink", 3.0]]
        >>> columns = Columns([0]).fit(np.array(rows, dtype=object))
        >>> columns.transform(np.array([["blue", 3.0], ["pink", 4.0]], dtype=object))
        array([[ 0.,  3.],
               [nan,  4.]])
    """

    def __init__(self, categorical_features: Sequence[Any] | None = None) -> None:
        self.categorical_features = categorical_features
        self.categories: list[list[Any] | None] = []

    def fit(self, X: Any) -> Columns:
        """Find the categorical columns of X and their categories."""
        chosen = self._chosen(X)
        self.categories = [
            _categories(_column(X, j)) if j in chosen else None for j in range(_width(X))
        ]
        return self

    @property
    def any_categorical(self) -> bool:
        return any(c is not None for c in self.categories)

    def transform(self, X: Any) -> Array:
        """X with categories replaced by codes, as float64 (n, columns)."""
        if _width(X) != len(self.categories):
            raise ValueError(
                f"X has {_width(X)} columns, but the model was fitted with {len(self.categories)}."
            )
        out = np.empty((len(X), len(self.categories)))
        for j, known in enumerate(self.categories):
            values = _column(X, j)
            out[:, j] = _numbers(values, _name(X, j)) if known is None else _codes(values, known)
        return out

    def _chosen(self, X: Any) -> set[int]:
        names = list(X.columns) if is_frame(X) else []
        chosen = {j for j in range(len(names)) if str(X.dtypes.iloc[j]) == "category"}
        for key in () if self.categorical_features is None else self.categorical_features:
            if key in names:
                chosen.add(names.index(key))
            elif isinstance(key, (int, np.integer)) and 0 <= key < _width(X):
                chosen.add(int(key))
            else:
                raise ValueError(
                    f"categorical_features names the column {key!r}, which X does not have."
                )
        return chosen


def _width(X: Any) -> int:
    shape = np.shape(X)
    return int(shape[1]) if len(shape) == 2 else 0


def _column(X: Any, j: int) -> Array:
    return np.asarray(X.iloc[:, j] if is_frame(X) else X[:, j])


def _name(X: Any, j: int) -> str:
    return f"column {X.columns[j]!r}" if is_frame(X) else f"column {j}"


def _missing(values: Array) -> NDArray[np.bool_]:
    # NaN is the value that differs from itself; pandas.NA refuses to be compared.
    return np.array([v is None or str(v) in ("nan", "<NA>", "NaT") for v in values.tolist()])


def _categories(values: Array) -> list[Any]:
    counts = Counter(_plain(v) for v in values[~_missing(values)].tolist())
    known = [v for v, count in counts.items() if count > 1]
    return sorted(known, key=lambda v: (str(type(v)), v))


def _codes(values: Array, known: list[Any]) -> Array:
    position = {v: float(k) for k, v in enumerate(known)}
    return np.array([position.get(_plain(v), np.nan) for v in values.tolist()])


def _plain(value: Any) -> Any:
    """A value that JSON can hold: numbers that are equal are one category."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, float, np.number)):
        return float(value)
    return str(value)


def _numbers(values: Array, name: str) -> Array:
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    try:
        return np.array(
            [np.nan if m else v for v, m in zip(values, _missing(values), strict=True)],
            dtype=np.float64,
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} holds text or other values that are not numbers; drop it, convert it to "
            "numbers, or declare it categorical (pandas dtype 'category' or categorical_features)."
        ) from None
