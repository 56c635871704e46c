r"""The CRPS of a distribution given by its CDF, by Gauss-Legendre quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..errors import DomainError
from ..validation import reduce

__all__ = ["crps_loss", "gauss_legendre"]


def _legendre(n: int) -> tuple[list[float], list[float]]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


# What torch.compiler.assume_constant_result does, without importing the compiler (over a second)
# whenever this module is imported.
_legendre._dynamo_marked_constant = True  # type: ignore[attr-defined]


def gauss_legendre(
    n: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Nodes and weights, both (n,), of the Gauss-Legendre rule on (0, 1).

    Example:
        >>> t, w = gauss_legendre(4)
        >>> (w * t**7).sum()  # exact for polynomials up to degree 2 n - 1
        tensor(0.1250)
    """
    nodes, weights = _legendre(n)
    return (
        torch.tensor(nodes, dtype=dtype, device=device),
        torch.tensor(weights, dtype=dtype, device=device),
    )


def crps_loss(
    cdf: Callable[[Tensor], Tensor],
    x: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    nodes: int = 32,
    reduction: str = "mean",
) -> Tensor:
    r"""CRPS \(\int (F(t) - 1[x \le t])^2\,dt\) of a CDF, split at the observation.

    The integrand jumps at x, so the two sides \(\int_{low}^x F^2\) and \(\int_x^{high} (1-F)^2\)
    are integrated separately, with `nodes` Gauss-Legendre nodes each. For a step CDF over discrete
    labels 0/1 the range (0, 1) makes the result exact: it is the Brier score.

    Args:
        cdf: maps points t (*x.shape, nodes) to F(t) of the same shape.
        x: observations, any shape.
        low, high: finite range of integration, broadcastable to `x`; widened to hold x. What the
            distribution puts outside is neglected, so take the support or far quantiles.
        nodes: number of nodes on either side.
        reduction: "mean", "sum" or "none" (then the shape of `x`).

    Example:
        >>> normal = torch.distributions.Normal(0.0, 1.0)
        >>> crps_loss(normal.cdf, torch.zeros(1), low=-8.0, high=8.0)
        tensor(0.2337)
    """
    for bound in (low, high):
        if not isinstance(bound, Tensor) and not math.isfinite(bound):
            raise DomainError(
                "crps_loss integrates over a finite range; pass far quantiles as low and high."
            )
    t, w = gauss_legendre(nodes, dtype=x.dtype, device=x.device)
    below = (x - low).clamp_min(0)
    above = (high - x).clamp_min(0)
    left = cdf(x.unsqueeze(-1) - below.unsqueeze(-1) * t)
    right = 1 - cdf(x.unsqueeze(-1) + above.unsqueeze(-1) * t)
    loss = below * (w * left.square()).sum(-1) + above * (w * right.square()).sum(-1)
    return reduce(loss, reduction)
