"""AdamW for a bag: the weights of all layers in one matrix with a row per member."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["BagAdamW"]

BETA1, BETA2, EPS = 0.9, 0.99, 1e-8


class BagAdamW:
    """AdamW whose state is flat: a step is a handful of operations, however many layers there are.

    The parameters of the module become views of one matrix `weights` with a row per
    member, so that members can be clipped, compared and restored. (The optimisers of torch also
    import its compiler when they are built, which takes longer than a small fit.)

    Args:
        module: all its parameters have the member dimension K first.
        weight_decay: pull towards zero, in units of the learning rate.
        averaging: the share of the past that the moving average `average` keeps at every step.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> layer.weight = nn.Parameter(torch.ones(2, 3))  # two members of three weights
        >>> optimiser = BagAdamW(layer)
        >>> layer.weight.square().sum().backward()
        >>> optimiser.step(0.1)
        >>> bool((layer.weight < 1).all())
        True
    """

    def __init__(
        self, module: nn.Module, weight_decay: float = 0.0, averaging: float = 0.0
    ) -> None:
        self.weight_decay, self.averaging = weight_decay, averaging
        self.parameters = list(module.parameters())
        self.weights = torch.cat([p.detach().reshape(len(p), -1) for p in self.parameters], 1)
        start = 0
        for p in self.parameters:
            own = slice(start, start + p[0].numel())
            p.data, p.grad = self.weights[:, own].view(p.shape), None
            start = own.stop
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.average = self.weights.clone()
        self.steps = 0

    @torch.no_grad()
    def step(self, rate: float, limit: float = 1.0) -> None:
        """One step of each member with its gradient scaled to a norm of at most `limit`.

        A gradient that is not finite is dropped. There are no gradients afterwards.
        """
        grads = torch.cat([_gradient(p).reshape(len(p), -1) for p in self.parameters], 1)
        norm = grads.square().sum(1, keepdim=True).sqrt_()
        if not bool(norm.isfinite().all()):
            grads.masked_fill_(~norm.isfinite(), 0.0)
            norm = norm.nan_to_num(0.0, 0.0)
        if bool((norm > limit).any()):
            grads.mul_(limit / norm.clamp_min(limit))
        self.steps += 1
        self.mean.lerp_(grads, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(grads, grads, value=1 - BETA2)
        correction = (1 - BETA2**self.steps) ** 0.5
        denominator = self.square.sqrt().div_(correction).add_(EPS)
        self.weights.mul_(1 - rate * self.weight_decay)
        self.weights.addcdiv_(self.mean, denominator, value=-rate / (1 - BETA1**self.steps))
        for p in self.parameters:
            p.grad = None
        # The average forgets the start quickly.
        keep = min(self.averaging, self.steps / (self.steps + 10))
        self.average.lerp_(self.weights, 1 - keep)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
