"""Features as a network likes them: standardised, piecewise-linear, one-hot, missing marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["FeatureEncoding"]

# More inputs than this would make the first layer the whole network: bins give way.
MAX_WIDTH = 2048
# Rows behind the quantiles of the bins; more do not move them.
MAX_ROWS = 100_000
# How far outside the training range, in ranges, a feature is still taken at its word.
SLACK = 0.25


class FeatureEncoding(nn.Module):
    r"""Rows (..., p) of numbers, codes and NaN to inputs (..., width) of a network.

    | column   | becomes                                                                        |
    |----------|--------------------------------------------------------------------------------|
    | number x | its standardised value, and for bins with edges at quantiles of the training   |
    |          | data how much of each bin lies below x: clamp((x - left) / (right - left), 0, 1) |
    | category | one indicator per category                                                     |
    | missing  | the mean of the training data, and an indicator if training data had any       |

    The bins let the first layer respond to a part of a feature's range alone. Values far outside
    the training range are pulled back to its neighbourhood.

    Args:
        bins: bins per numerical column; 0 for none. Fewer where a column has few distinct values.

    Example:
        >>> encoding = FeatureEncoding(bins=2).fit(np.array([[0.0], [1.0], [2.0], [3.0], [4.0]]))
        >>> encoding(torch.tensor([[1.0], [3.0]])).shape
        torch.Size([2, 3])
    """

    bin_column: Tensor
    bin_left: Tensor
    bin_inverse: Tensor
    code_column: Tensor
    code_value: Tensor
    number_column: Tensor
    missing_column: Tensor
    shift: Tensor
    factor: Tensor

    def __init__(self, bins: int = 8) -> None:
        super().__init__()
        self.bins = bins
        self.width = 0
        # Not buffers: these need float64, whatever the precision of the network.
        self.ranges = np.zeros((4, 0))  # low, high, centre, scale of each column

    def fit(
        self,
        X: NDArray[np.float64],
        categories: Sequence[int | None] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> FeatureEncoding:
        """Learn ranges, bins and scales.

        Args:
            X: (n, p), NaN where missing.
            categories: number of categories of each column, None for a number.
            weights: of the rows (n,).
        """
        n, p = X.shape
        kinds = [None] * p if categories is None else list(categories)
        if n > MAX_ROWS:
            chosen = np.linspace(0, n - 1, MAX_ROWS).astype(int)
            X, weights = X[chosen], None if weights is None else weights[chosen]
        w = np.ones(len(X)) if weights is None else weights
        numbers = [j for j in range(p) if kinds[j] is None]
        budget = max(0, MAX_WIDTH // max(1, len(numbers)) - 1)
        bins = min(self.bins, budget)
        low, high, centre, scale = np.zeros(p), np.zeros(p), np.zeros(p), np.ones(p)
        bin_column: list[int] = []
        edges: list[tuple[float, float]] = []
        for j in numbers:
            known = ~np.isnan(X[:, j])
            if not known.any():
                continue
            x, wx = X[known, j], w[known]
            low[j], high[j], centre[j] = x.min(), x.max(), np.average(x, weights=wx)
            largest = max(float(np.abs(x).max()), 1e-300)
            spread = np.sqrt(np.average(((x - centre[j]) / largest) ** 2, weights=wx))
            # What rounding leaves of a constant column is not a spread.
            scale[j] = largest * spread if spread > 1e-9 else 1.0
            cuts = _cuts((x - centre[j]) / scale[j], wx, bins)
            if len(cuts) > 2:
                bin_column += [j] * (len(cuts) - 1)
                edges += list(zip(cuts[:-1], cuts[1:], strict=True))
        slack = SLACK * (high - low)
        self.ranges = np.stack([low - slack, high + slack, centre, scale])
        codes = [(j, k) for j in range(p) for k in range(kinds[j] or 0)]
        missing = [j for j in range(p) if np.isnan(X[:, j]).any()]
        left = np.array([a for a, _ in edges])
        tables = {
            "bin_column": np.array(bin_column, dtype=np.int64),
            "bin_left": left,
            "bin_inverse": 1.0 / (np.array([b for _, b in edges]) - left),
            "code_column": np.array([j for j, _ in codes], dtype=np.int64),
            "code_value": np.array([k for _, k in codes], dtype=np.float64),
            "number_column": np.array(numbers, dtype=np.int64),
            "missing_column": np.array(missing, dtype=np.int64),
        }
        width = len(numbers) + len(bin_column) + len(codes) + len(missing)
        tables |= {"shift": np.zeros(width), "factor": np.ones(width)}
        self.set_tables({name: torch.from_numpy(table) for name, table in tables.items()})
        encoded = self(self.standardise(X)).numpy()
        mean = np.average(encoded, axis=0, weights=w)
        spreads = np.sqrt(np.average((encoded - mean) ** 2, axis=0, weights=w))
        self.shift = torch.from_numpy(mean)
        # Rare categories and narrow bins would otherwise shout.
        self.factor = torch.from_numpy(1.0 / np.maximum(spreads, 0.2))
        return self

    def set_tables(self, tables: Mapping[str, Tensor]) -> FeatureEncoding:
        """Take over the tables of a fitted encoding."""
        for name, table in tables.items():
            self.register_buffer(name, table)
        self.width = len(self.shift)
        return self

    def standardise(self, X: NDArray[np.float64]) -> Tensor:
        """Rows (n, p), as far as they need float64: numbers clipped and standardised."""
        number = self.number_column.cpu().numpy()
        low, high, centre, scale = self.ranges[:, number]
        X = X.copy()
        X[:, number] = (np.clip(X[:, number], low, high) - centre) / scale
        return torch.from_numpy(X)

    @property
    def unbinned(self) -> Tensor:
        """Which inputs (width,) are not bins: the numbers themselves, categories, missing marks."""
        keep = torch.ones(self.width, dtype=torch.bool)
        first = len(self.number_column)
        keep[first : first + len(self.bin_column)] = False
        return keep

    def forward(self, rows: Tensor) -> Tensor:
        """Encode standardised rows (..., p) to (..., width)."""
        missing = rows.isnan()
        values = rows.masked_fill(missing, 0.0)
        # index_select, because indexing by a tensor takes several times as long.
        parts = [values.index_select(-1, self.number_column)]
        if len(self.bin_column):
            binned = values.index_select(-1, self.bin_column).sub_(self.bin_left.to(rows))
            parts.append(binned.mul_(self.bin_inverse.to(rows)).clamp_(0.0, 1.0))
        if len(self.code_column):
            same = rows.index_select(-1, self.code_column) == self.code_value.to(rows)
            parts.append(same.to(rows.dtype))
        if len(self.missing_column):
            parts.append(missing.index_select(-1, self.missing_column).to(rows.dtype))
        return torch.cat(parts, -1).sub_(self.shift.to(rows)).mul_(self.factor.to(rows))

    def extra_repr(self) -> str:
        return f"bins={self.bins}, width={self.width}"


def _cuts(x: NDArray[np.float64], w: NDArray[np.float64], bins: int) -> list[float]:
    """Distinct edges of at most `bins` bins that hold about equal weight."""
    distinct, inverse = np.unique(x, return_inverse=True)
    if bins < 2 or len(distinct) < 3:
        return []
    if len(distinct) <= bins + 1:
        return [float(v) for v in distinct]
    share = np.cumsum(np.bincount(inverse, weights=w))
    levels = np.linspace(0, 1, bins + 1)[1:-1] * share[-1]
    inner = distinct[np.searchsorted(share, levels * (1 - 1e-12))]
    cuts = np.unique(np.concatenate([distinct[:1], inner, distinct[-1:]]))
    return [float(v) for v in cuts]
