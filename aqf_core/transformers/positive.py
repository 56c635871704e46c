"""Positive parameters: an exponential that cannot overflow, with a cheap gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..validation import tracing

__all__ = ["exp_bounded"]

LOG2_E = math.log2(math.e)


def exp_bounded(raw: Tensor, limit: float) -> Tensor:
    """exp(raw / (1 + |raw| / limit)), between exp(-limit) and exp(limit), 1 at 0.

    The same as `bounded(raw, limit).exp()`. It is the most frequent operation of a transformer
    (one per parameter), so in eager mode its gradient is written out, which halves its cost.

    Example:
        >>> exp_bounded(torch.tensor([0.0, 8.0, -1e30]), 8.0)
        tensor([1.0000e+00, 5.4598e+01, 3.3546e-04])
    """
    if tracing():
        return torch.exp2(raw * (LOG2_E * _shrink(raw, limit)))
    if raw.requires_grad and torch.is_grad_enabled():
        out: Tensor = _ExpBounded.apply(raw, limit)
        return out
    work = raw.abs().mul_(1.0 / (limit * LOG2_E)).add_(1.0 / LOG2_E)
    return torch.div(raw, work, out=work).exp2_()


def _shrink(raw: Tensor, limit: float) -> Tensor:
    return 1.0 / (1.0 + raw.abs() / limit)


class _ExpBounded(torch.autograd.Function):
    """d/dx exp(x s) = exp(x s) s^2 with s = 1 / (1 + |x| / limit)."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, limit: float) -> Tensor:
        shrink = raw.abs().mul_(1.0 / limit).add_(1.0).reciprocal_()
        # exp2 is vectorised better than exp on CPUs.
        out = (raw * shrink).mul_(LOG2_E).exp2_()
        ctx.save_for_backward(raw, shrink, out)
        ctx.limit = limit
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        raw, shrink, out = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            shrink = _shrink(raw, ctx.limit)
            return grads[0] * out * shrink * shrink, None
        return (grads[0] * out).mul_(shrink).mul_(shrink), None
