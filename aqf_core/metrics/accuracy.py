r"""Errors of point predictions, and how well generated data pass for real data."""

from __future__ import annotations

from .arrays import Array, ArrayLike, in_kind, to_paired
from .two_sample import labelled_folds

__all__ = ["d_loss", "mae", "nd", "nrmse", "rmse"]


def mae(prediction: Array, y: Array) -> Array:
    r"""Mean absolute error \(\frac1n\sum|y - \hat y|\).

    Example:
        >>> import torch
        >>> mae(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -3.0]))
        tensor(2.)
    """
    p, x = to_paired(prediction=prediction, y=y)
    return in_kind((x - p).abs().mean(), prediction, y)


def rmse(prediction: Array, y: Array) -> Array:
    r"""Root mean squared error \(\sqrt{\frac1n\sum(y - \hat y)^2}\).

    Example:
        >>> import torch
        >>> rmse(torch.tensor([0.0, 0.0]), torch.tensor([3.0, -3.0]))
        tensor(3.)
    """
    p, x = to_paired(prediction=prediction, y=y)
    return in_kind((x - p).square().mean().sqrt(), prediction, y)


def nd(prediction: Array, y: Array) -> Array:
    r"""Normalised deviation \(\sum|y - \hat y| / \sum|y|\).

    Example:
        >>> import torch
        >>> nd(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]))
        tensor(0.5000)
    """
    p, x = to_paired(prediction=prediction, y=y)
    return in_kind((x - p).abs().sum() / x.abs().sum(), prediction, y)


def nrmse(prediction: Array, y: Array) -> Array:
    r"""Normalised root mean squared error, RMSE / mean|y|.

    Example:
        >>> import torch
        >>> nrmse(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
        tensor(0.5000)
    """
    p, x = to_paired(prediction=prediction, y=y)
    return in_kind((x - p).square().mean().sqrt() / x.abs().mean(), prediction, y)


def d_loss(real: ArrayLike, generated: ArrayLike, folds: int = 5, seed: int = 0) -> float:
    """Accuracy with which a support vector machine tells generated from real data.

    An SVM with a Gaussian kernel on standardised features, cross-validated over stratified folds;
    the larger set is subsampled so that guessing scores 1/2. One half means indistinguishable,
    1 perfectly distinguishable. Needs scikit-learn.

    Args:
        real: (n, d).
        generated: (m, d).
        folds: number of cross-validation folds.
        seed: of the subsample and the folds.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> d_loss(rng.normal(size=(200, 2)), rng.normal(5, 1, size=(200, 2)))
        1.0
    """
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    rows, labels, split = labelled_folds(real, generated, folds, seed)
    model = make_pipeline(StandardScaler(), SVC())
    return float(cross_val_score(model, rows, labels, cv=split).mean())
