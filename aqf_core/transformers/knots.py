"""What piecewise maps share: finding bins, summing increments, looking up per-bin tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["anchored_sum", "by_rows", "clamp_to_bin", "find_bin"]


def anchored_sum(bins: int) -> Tensor:
    """Matrix (bins, bins + 1) with increments @ matrix = knots, the middle knot at 0.

    A product is as fast as a cumulative sum, and its gradient is much faster.

    Example:
        >>> torch.tensor([1.0, 2.0, 3.0, 4.0]) @ anchored_sum(4)
        tensor([-3., -2.,  0.,  3.,  7.])
    """
    cell, knot, centre = torch.arange(bins)[:, None], torch.arange(bins + 1), bins // 2
    right = (cell >= centre) & (cell < knot)
    left = (cell < centre) & (cell >= knot)
    return right.float() - left.float()


def find_bin(x: Tensor, knots: Tensor) -> Tensor:
    """Index (..., A) of the bin of each point; points outside get the first or last bin.

    A loop over the few inner knots is several times faster than a broadcast comparison, and unlike
    searchsorted it works under vmap. Counting in small integers halves its cost.
    """
    inner = knots.detach()[..., 1:-1].unsqueeze(-2).unbind(-1)
    x = x.detach()
    k = (x >= inner[0]).to(torch.uint8 if len(inner) < 256 else torch.int32)
    for knot in inner[1:]:
        k = k + (x >= knot)
    return k.long()


def clamp_to_bin(place: Tensor, exact: bool = False) -> Tensor:
    """Clamp positions, in units of the width of a bin, to [0, 1].

    The gradient is 1 inside *and at* the ends: `clamp` has gradient 0 there, which is where the
    median of a spline is.

    Args:
        place: any shape.
        exact: whether the result must not leave [0, 1] by a rounding unit, which is slower.

    Example:
        >>> x = torch.tensor([-2.0, 0.0, 0.5, 1.0], requires_grad=True)
        >>> torch.autograd.grad(clamp_to_bin(x).sum(), x)
        (tensor([0., 1., 1., 1.]),)
    """
    if exact:
        inside = (place >= 0.0) & (place <= 1.0)
        return torch.where(inside, place, place.detach().clamp(0.0, 1.0))
    slack = torch.finfo(place.dtype).eps
    return place.clamp(-slack, 1.0 + 2.0 * slack)


def by_rows(
    x: Tensor, tables: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], Callable[[Tensor], Tensor]]:
    """Bring points and per-parameter tables to the layout "one row of points per table", to gather.

    Args:
        x: points of shape (...).
        tables: of shape (..., T), T may differ; their common leading shape broadcasts with x.

    Returns:
        x of shape (*B, A), tables of shape (*B, T), and the function that brings results of shape
        (*B, A) back to the broadcast shape of the inputs.
    """
    lead = tables[0].shape[:-1]
    extra = x.dim() - len(lead)
    restore: Callable[[Tensor], Tensor]
    if x.dim() and len(lead) and lead[-1] == 1:
        tables, restore = [table.squeeze(-2) for table in tables], _unchanged
    elif extra > 0:
        # Leading dimensions that only the points have (samples) become the points of one row.
        samples = x.shape[:extra]
        x = x.flatten(0, extra - 1).movedim(0, -1)
        restore = lambda out: out.movedim(-1, 0).reshape(*samples, *out.shape[:-1])  # noqa: E731
    else:
        x, restore = x.unsqueeze(-1), _last_squeezed
    batch = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        x.shape[:-1], tables[0].shape[:-1]
    )
    x = x.expand(*batch, x.shape[-1])
    return x, [table.expand(*batch, table.shape[-1]) for table in tables], restore


def _unchanged(x: Tensor) -> Tensor:
    return x


def _last_squeezed(x: Tensor) -> Tensor:
    return x.squeeze(-1)
