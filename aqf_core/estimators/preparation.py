"""Rows before training: grouping of repeated rows, and who learns from which."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..spaces import OutputSpace, Support
from .loop import Split

__all__ = ["POSITIVE", "choose_support", "group_rows", "make_split"]

Array = NDArray[Any]

# Above this many rows repeated ones are left alone: sorting would cost more than it brings.
GROUP_LIMIT = 50_000
POSITIVE: Support = (0.0, None)
# Positive targets are taken to be so by nature if some come this close to zero, in spreads.
NEAR = 0.25


def group_rows(X: Array, y: Array, weights: Array | None) -> tuple[Array, Array, Array]:
    """Distinct rows in a fixed order, with the sum of their weights; rows of weight 0 are dropped.

    A row of weight k and k equal rows therefore are the same to the model, the order of rows does
    not matter, and copies of one row are never split between learning and judging.

    Example:
        >>> group_rows(np.array([[2.0], [1.0], [2.0]]), np.array([0.0, 5.0, 0.0]), None)
        (array([[1.],
               [2.]]), array([5., 0.]), array([1., 2.]))
    """
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights is not None:
        X, y, w = X[w > 0], y[w > 0], w[w > 0]
    if len(X) > GROUP_LIMIT:
        return X, y, w
    # + 0.0 turns -0.0 into 0.0, and lexsort puts NaN last.
    table = np.column_stack([X, y]) + 0.0
    order = np.lexsort(table.T[::-1])
    table = table[order]
    same = (table[1:] == table[:-1]) | (np.isnan(table[1:]) & np.isnan(table[:-1]))
    first = np.concatenate([[0], np.flatnonzero(~same.all(1)) + 1])
    return X[order[first]] + 0.0, y[order[first]] + 0.0, np.add.reduceat(w[order], first)


def choose_support(y: Array) -> Support | None:
    """Bounds that targets (n,) or (n, d) suggest: zero if all are positive and some come near it.

    On the scale that goes with this bound, small targets are as far apart as large ones: errors
    that are small where the target is small are then easy to learn.

    Example:
        >>> choose_support(np.array([0.1, 1.0, 20.0])), choose_support(np.array([90.0, 99.0]))
        ((0.0, None), None)
    """
    lowest = y.min(0)
    if not (lowest > 0).all():
        return None
    spread = OutputSpace(None if y.ndim == 1 else y.shape[1]).double().fit(torch.from_numpy(y)).unit
    return POSITIVE if (lowest < NEAR * spread.numpy()).any() else None


def make_split(rows: int, members: int, folds: int) -> Split:
    """Let every member leave out one of `folds` random parts; a new partition once all are used.

    Example:
        >>> split = make_split(10, members=4, folds=2)
        >>> [len(s) for s in split.learn], [len(s) for s in split.held]
        ([5, 5, 5, 5], [5, 5, 5, 5])
    """
    folds = min(folds, rows)
    learn, held = [], []
    for k in range(members):
        if k % folds == 0:
            parts = torch.randperm(rows).tensor_split(folds)
        held.append(parts[k % folds].sort().values)
        others = [part for j, part in enumerate(parts) if j != k % folds]
        learn.append(torch.cat(others).sort().values)
    return Split(learn, held)
