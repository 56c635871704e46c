"""The standard normal: maps between levels u in [0, 1] and the base variable z, accurate in tails.

Every model of this library is a monotone map of z ~ N(0, 1). Levels only appear at its border,
through `level_to_base` and `base_to_level`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["base_to_level", "clamp_levels", "level_to_base", "log_density", "log_level_to_base"]

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def clamp_levels(u: Tensor) -> Tensor:
    """Clamp levels to [smallest normal number, 1 - eps/2], so that 0 and 1 have finite quantiles.

    Example:
        >>> clamp_levels(torch.tensor([0.0, 0.5, 1.0])) < 1
        tensor([True, True, True])
    """
    info = torch.finfo(u.dtype)
    return u.clamp(min=info.tiny, max=1.0 - 0.5 * info.eps)


def level_to_base(u: Tensor) -> Tensor:
    """z = Phi^-1(u) for levels in [0, 1]; finite, also at both ends.

    Example:
        >>> level_to_base(torch.tensor([0.025, 0.5, 0.975]))
        tensor([-1.9600,  0.0000,  1.9600])
    """
    z: Tensor = torch.special.ndtri(clamp_levels(u))
    return z


def base_to_level(z: Tensor) -> Tensor:
    """u = Phi(z).

    Example:
        >>> base_to_level(torch.tensor([-1.9600, 0.0000]))
        tensor([0.0250, 0.5000])
    """
    u: Tensor = torch.special.ndtr(z)
    return u


def log_density(z: Tensor) -> Tensor:
    """log N(z; 0, 1) = -z^2 / 2 - log(2 pi) / 2.

    Example:
        >>> log_density(torch.zeros(1))
        tensor([-0.9189])
    """
    return -0.5 * z * z - HALF_LOG_2PI


def log_level_to_base(log_u: Tensor) -> Tensor:
    """z = Phi^-1(exp(log_u)) for log_u <= log(1/2), also where exp(log_u) underflows.

    Starts from Phi^-1 or, below its range, from the asymptotic expansion, and polishes with three
    Newton steps on log Phi(z) = log_u. The last step carries the gradient.

    Args:
        log_u: logarithms of levels, any shape, at most log(1/2).

    Example:
        >>> log_level_to_base(torch.tensor([math.log(0.025), -1000.0]))
        tensor([ -1.9600, -44.6157])
    """
    fixed = log_u.detach()
    # Phi^-1 is accurate down to u = 1e-30; further out z^2 ~ -2 log u - log(2 pi z^2).
    near = torch.special.ndtri(fixed.clamp(min=-69.0).exp())
    squared = (-2.0 * fixed).clamp(min=10.0)
    far = -(squared - (2.0 * math.pi * squared).log()).sqrt()
    z = torch.where(fixed > -69.0, near, far)
    for _ in range(2):
        z = z - (torch.special.log_ndtr(z) - fixed) / _log_phi_slope(z)
    return z - (torch.special.log_ndtr(z) - log_u) / _log_phi_slope(z)


def _log_phi_slope(z: Tensor) -> Tensor:
    """d log Phi(z) / dz = N(z) / Phi(z)."""
    return torch.exp(log_density(z) - torch.special.log_ndtr(z))
