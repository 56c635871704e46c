"""Affine maps of a normal variable: the Gaussian, and with a flow around it, MAF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..losses.parametric import gaussian_crps
from .base import LOG_SCALE_LIMIT, Direction, Transformer
from .positive import exp_bounded
from .row_sampling import RowSampler

__all__ = ["Affine"]


class Affine(Transformer):
    """y = location + scale * z, that is N(location, scale^2); zero parameters give N(0, 1).

    Example:
        >>> t = Affine()
        >>> h = t.gaussian_params(torch.tensor([1.0]), torch.tensor([2.0]))
        >>> t.quantile(torch.tensor([0.5]), h), t.cdf(torch.tensor([1.0]), h)
        (tensor([1.]), tensor([0.5000]))
    """

    closed_inverse = True
    closed_crps = True

    def __init__(self, direction: Direction = "quantile") -> None:
        super().__init__((), direction)

    def sampler(self, z: Tensor) -> Callable[[int, Tensor], None]:
        return AffineSampler(z)

    def core(self, a: Tensor, shape: Any, slope: bool) -> tuple[Tensor, Tensor | None]:
        return a, torch.zeros_like(a) if slope else None

    def core_inverse(self, b: Tensor, shape: Any, slope: bool) -> tuple[Tensor, Tensor | None]:
        return self.core(b, shape, slope)

    def core_crps(self, b: Tensor, shape: Any) -> Tensor:
        return gaussian_crps(torch.zeros_like(b), torch.ones_like(b), b, reduction="none")


class AffineSampler(RowSampler):
    """y = location + scale * z in place."""

    def evaluate(self, j: int, z: Tensor, h: Tensor) -> None:
        torch.addcmul(h[0], exp_bounded(h[1], LOG_SCALE_LIMIT), z, out=z)
