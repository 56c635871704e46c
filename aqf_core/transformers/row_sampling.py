"""What sampling spends its time on: one point per map, without gradients, in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Bounded", "RowSampler"]


class RowSampler:
    """Turns base variables z into outcomes y, variable after variable, in their own memory.

    Every variable takes a few dozen operations on some thousand points each, so that calling them
    costs as much as their arithmetic. Parameters are therefore rows of memory (feature-major),
    results go to memory that is used for all variables (large tensors made anew would be returned
    to the system and mapped again), and views of it are made once.

    Args:
        z: base variables (d, *B), contiguous; variable j becomes y_j when it is its turn.
    """

    def __init__(self, z: Tensor) -> None:
        self.batch_shape, self.n = z.shape[1:], z[0].numel()
        self.columns = z.view(len(z), self.n).unbind(0)

    def __call__(self, j: int, h: Tensor) -> None:
        """Replace z_j by y_j, given its parameters h (*B, P) up to broadcasting."""
        size = h.shape[-1]
        if h.shape[:-1] != self.batch_shape:
            h = h.expand(*self.batch_shape, size)
        rows = h.t() if h.dim() == 2 else h.movedim(-1, 0).reshape(size, self.n)
        self.evaluate(j, self.columns[j], rows.contiguous())

    def evaluate(self, j: int, z: Tensor, h: Tensor) -> None:
        """Replace the values of z (N,), variable j, given rows h (P, N)."""
        raise NotImplementedError


class Bounded:
    """`bounded` of several rows, each with its own limit, into given memory.

    Args:
        limits: one per row.
        out: memory (rows, N).

    Example:
        >>> Bounded([1.0, 8.0], torch.empty(2, 1))(torch.tensor([[1.0], [8.0]]))
        tensor([[0.5000],
                [4.0000]])
    """

    def __init__(self, limits: Sequence[float], out: Tensor) -> None:
        self.growth, self.out = (1.0 / out.new_tensor(limits)).unsqueeze(1), out

    def __call__(self, raw: Tensor) -> Tensor:
        torch.abs(raw, out=self.out).mul_(self.growth).add_(1.0)
        return torch.div(raw, self.out, out=self.out)
