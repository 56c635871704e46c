r"""Can generated rows be told from real ones, and are they copies of rows that were learned?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ShapeError
from .arrays import ArrayLike, to_tensors

__all__ = [
    "Neighbours",
    "TwoSampleTest",
    "classifier_two_sample_test",
    "labelled_folds",
    "nearest_neighbours",
]

CHUNK = 1024


class TwoSampleTest(NamedTuple):
    """Accuracy of a classifier on rows it has not seen, and how likely mere chance reaches it."""

    accuracy: float
    p_value: float


class Neighbours(NamedTuple):
    """How near generated rows are to the training rows, beside how near held-out rows are.

    Attributes:
        closer: probability that a generated row is nearer to its nearest training row than a
            held-out row is to its own; about 1/2 for new rows, near 1 for copies.
        ratio: median distance of generated rows divided by that of held-out rows.
        copies: share of generated rows that are equal to a training row.
    """

    closer: float
    ratio: float
    copies: float


def labelled_folds(
    real: ArrayLike, generated: ArrayLike, folds: int, seed: int
) -> tuple[NDArray[Any], NDArray[Any], Any]:
    """What a classifier learns from to tell generated from real rows.

    Args:
        real: (n, d).
        generated: (m, d); the larger set is subsampled, so that guessing is right half the time.
        folds: number of cross-validation folds.
        seed: of the subsample and the folds.

    Returns:
        Rows (2 min(n, m), d), labels 1 for real and 0 for generated, and stratified folds.

    Raises:
        ShapeError: if they are no tables with the same columns, or have too few rows.

    Example:
        >>> rows, labels, _ = labelled_folds(np.zeros((5, 2)), np.ones((3, 2)), 2, 0)
        >>> rows.shape, labels.tolist()
        ((6, 2), [1, 1, 1, 0, 0, 0])
    """
    from sklearn.model_selection import StratifiedKFold

    sets = [t.detach().cpu().numpy() for t in to_tensors(real=real, generated=generated)]
    if sets[0].ndim != 2 or sets[1].ndim != 2 or sets[0].shape[1] != sets[1].shape[1]:
        raise ShapeError(
            f"real (n, d) and generated (m, d) must share d, got {sets[0].shape} and "
            f"{sets[1].shape}."
        )
    n = min(map(len, sets))
    if n < folds:
        raise ShapeError(f"{folds} folds need at least {folds} rows of each kind, got {n}.")
    rng = np.random.default_rng(seed)
    rows = np.concatenate([s[rng.permutation(len(s))[:n]] for s in sets])
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return rows, np.repeat([1, 0], n), split


def classifier_two_sample_test(
    real: ArrayLike, generated: ArrayLike, folds: int = 5, seed: int = 0
) -> TwoSampleTest:
    r"""Classifier two-sample test (Lopez-Paz & Oquab 2017) with gradient-boosted trees.

    Every row is classified by trees that were grown on the other folds. If both sets come from one
    distribution, the share of right answers among N rows is about \(N(1/2, 1/(4N))\); the p-value
    is the upper tail of that. Trees notice what a kernel on all variables overlooks: bounds,
    rounded values, rare combinations. Needs scikit-learn.

    Args:
        real: (n, d).
        generated: (m, d); the larger set is subsampled.
        folds: number of cross-validation folds.
        seed: of the subsample, the folds and the trees.

    References:
        Revisiting Classifier Two-Sample Tests, https://arxiv.org/abs/1610.06545

    Example:
        >>> rng = np.random.default_rng(0)
        >>> test = classifier_two_sample_test(rng.normal(size=(99, 2)), rng.normal(3, 1, (99, 2)))
        >>> test.accuracy > 0.9, test.p_value < 1e-9
        (True, True)
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import cross_val_predict

    rows, labels, split = labelled_folds(real, generated, folds, seed)
    trees = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    answers = cross_val_predict(trees, rows, labels, cv=split)
    accuracy = float(np.mean(answers == labels))
    z = (accuracy - 0.5) * 2 * len(rows) ** 0.5
    return TwoSampleTest(accuracy, float(torch.special.ndtr(torch.tensor(-z).double())))


def nearest_neighbours(
    train: ArrayLike, held_out: ArrayLike, generated: ArrayLike, tolerance: float = 1e-6
) -> Neighbours:
    """Whether a generator memorised: distances of its rows to the nearest training row.

    Args:
        train: rows that were learned from (n, d).
        held_out: rows of the same kind that were not (k, d).
        generated: (m, d).
        tolerance: rows nearer than this are copies.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> train, held_out, new = (rng.normal(size=(300, 3)) for _ in range(3))
        >>> nearest_neighbours(train, held_out, train).closer  # every row is a copy
        1.0
        >>> 0.4 < nearest_neighbours(train, held_out, new).closer < 0.6
        True
    """
    known, held, rows = to_tensors(train=train, held_out=held_out, generated=generated)
    if any(t.dim() != 2 or t.shape[1] != known.shape[1] for t in (known, held, rows)):
        raise ShapeError(
            "train, held_out and generated must be tables with the same columns, got "
            f"{tuple(known.shape)}, {tuple(held.shape)} and {tuple(rows.shape)}."
        )
    near, usual = _nearest(rows, known), _nearest(held, known)
    order = usual.sort().values
    # Ties count half.
    above = len(order) - torch.searchsorted(order, near, right=True)
    ties = len(order) - torch.searchsorted(order, near) - above
    closer = (above + 0.5 * ties).mean() / len(order)
    ratio = near.median() / usual.median().clamp_min(torch.finfo(usual.dtype).tiny)
    copies = (near < tolerance).to(near.dtype).mean()
    return Neighbours(float(closer), float(ratio), float(copies))


def _nearest(rows: Tensor, known: Tensor) -> Tensor:
    """Distance (m,) of every row to the nearest known one."""
    return torch.cat([torch.cdist(part, known).amin(1) for part in torch.split(rows, CHUNK)])
