r"""Closed-form losses of Gaussian, Gaussian-mixture and logistic predictions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import DomainError
from ..validation import has_values, reduce

__all__ = [
    "gaussian_crps",
    "gaussian_kl_loss",
    "gaussian_mixture_crps",
    "gaussian_nll",
    "logistic_crps",
]

LOG_2PI = math.log(2 * math.pi)


def _standardise(deviation: Tensor, scale: Tensor, bound: float = 40.0) -> Tensor:
    """deviation / scale limited to +-bound, with finite values and gradients for every scale >= 0.

    The callers are constant beyond the bound in floating point, so nothing is lost.
    """
    divisor = torch.maximum(scale, deviation.detach().abs() / bound)
    return deviation / divisor.clamp_min(torch.finfo(deviation.dtype).tiny)


def _mean_absolute(mean: Tensor, scale: Tensor) -> Tensor:
    r"""E|X| of X ~ N(mean, scale^2): \(m\,\mathrm{erf}(m / s\sqrt2) + 2 s \varphi(m / s)\)."""
    z = _standardise(mean, scale)
    density = torch.exp(-0.5 * (z.square() + LOG_2PI))
    return mean * torch.erf(z / math.sqrt(2)) + 2 * scale * density


def gaussian_crps(loc: Tensor, scale: Tensor, x: Tensor, reduction: str = "mean") -> Tensor:
    r"""CRPS of N(loc, scale^2): \(\sigma [z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]\).

    Args:
        loc, scale: mean and standard deviation; scale 0 gives |x - loc|.
        x: observations; all arguments broadcast.
        reduction: "mean", "sum" or "none".

    Example:
        >>> gaussian_crps(torch.tensor(0.0), torch.tensor(1.0), torch.tensor([0.0, 3.0]), "none")
        tensor([0.2337, 2.4366])
    """
    return reduce(_mean_absolute(x - loc, scale) - scale / math.sqrt(math.pi), reduction)


def gaussian_mixture_crps(
    weights: Tensor, loc: Tensor, scale: Tensor, x: Tensor, reduction: str = "mean"
) -> Tensor:
    r"""CRPS of a mixture of K Gaussians (Grimit et al. 2006).

    \(\sum_i w_i A(x - \mu_i, \sigma_i) - \frac12 \sum_{ij} w_i w_j
    A(\mu_i - \mu_j, \sqrt{\sigma_i^2 + \sigma_j^2})\) with \(A(m, s) = E|N(m, s^2)|\).

    Args:
        weights, loc, scale: (..., K); weights sum to 1 over the last dimension.
        x: observations (...).
        reduction: "mean", "sum" or "none".

    Example:
        >>> half = torch.tensor([0.5, 0.5])
        >>> gaussian_mixture_crps(half, torch.tensor([-2.0, 2.0]), torch.ones(2), torch.tensor(0.0))
        tensor(0.7344)
    """
    if has_values(weights) and not bool(((weights.sum(-1) - 1).abs() < 1e-3).all()):
        raise DomainError("mixture weights must sum to 1 over the last dimension.")
    near = (weights * _mean_absolute(x.unsqueeze(-1) - loc, scale)).sum(-1)
    distance = loc.unsqueeze(-1) - loc.unsqueeze(-2)
    positive = scale.clamp_min(torch.finfo(scale.dtype).tiny)  # hypot(0, 0) has no gradient
    spread = torch.hypot(positive.unsqueeze(-1), positive.unsqueeze(-2))
    pairs = weights.unsqueeze(-1) * weights.unsqueeze(-2) * _mean_absolute(distance, spread)
    return reduce(near - 0.5 * pairs.sum((-2, -1)), reduction)


def logistic_crps(loc: Tensor, scale: Tensor, x: Tensor, reduction: str = "mean") -> Tensor:
    r"""CRPS of the logistic distribution: \(|d| + 2 s \log(1 + e^{-|d|/s}) - s\), d = x - loc.

    Args:
        loc, scale: location and scale s of the logistic distribution.
        x: observations; all arguments broadcast.
        reduction: "mean", "sum" or "none".

    Example:
        >>> logistic_crps(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.0))
        tensor(0.3863)
    """
    distance = (x - loc).abs()
    z = _standardise(distance, scale, bound=80.0)
    return reduce(distance + 2 * scale * functional.softplus(-z) - scale, reduction)


def gaussian_nll(loc: Tensor, scale: Tensor, x: Tensor, reduction: str = "mean") -> Tensor:
    r"""Negative log-likelihood of N(loc, scale^2): \(z^2/2 + \log\sigma + \log(2\pi)/2\).

    Args:
        loc, scale: mean and standard deviation (positive).
        x: observations; all arguments broadcast.
        reduction: "mean", "sum" or "none".

    Example:
        >>> gaussian_nll(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.0))
        tensor(0.9189)
    """
    z = (x - loc) / scale
    return reduce(0.5 * (z.square() + LOG_2PI) + scale.log(), reduction)


def gaussian_kl_loss(
    loc: Tensor,
    log_variance: Tensor,
    x: Tensor,
    smooth_l1: bool = True,
    reduction: str = "mean",
) -> Tensor:
    r"""KL divergence of a Gaussian prediction from a point label, up to a constant.

    With \(a = \log\sigma^2\) and \(e = |x - \mu|\):

        e <= 1, or smooth_l1=False:  exp(-a) e^2 / 2     + a / 2
        e >  1:                      exp(-a) (e - 1 / 2) + a / 2

    The published form (`smooth_l1=True`) of He et al. (2019) replaces the quadratic by a linear
    function for large errors. It is robust, but no longer the likelihood of a Gaussian: where
    errors exceed 1 it makes sigma too small. `smooth_l1=False` is the well-specified loss,
    `gaussian_nll` without its constant.

    Args:
        loc: predicted means.
        log_variance: a; emitting the logarithm keeps the loss free of division.
        x: observations; all arguments broadcast.
        smooth_l1: the published, robust form.
        reduction: "mean", "sum" or "none".

    Example:
        >>> zero = torch.tensor(0.0)
        >>> gaussian_kl_loss(zero, zero, torch.tensor([1.0, 3.0]), reduction="none")
        tensor([0.5000, 2.5000])
        >>> gaussian_kl_loss(zero, zero, torch.tensor([1.0, 3.0]), False, reduction="none")
        tensor([0.5000, 4.5000])
    """
    error = x - loc
    penalty = error.square() / 2
    if smooth_l1:
        distance = error.abs()
        # The minimum with 1 keeps the unused quadratic branch from overflowing.
        penalty = torch.where(distance > 1, distance - 0.5, error.clamp(-1, 1).square() / 2)
    return reduce(torch.exp(-log_variance) * penalty + log_variance / 2, reduction)
