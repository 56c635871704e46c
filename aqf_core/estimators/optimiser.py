"""AdamW for a bag: the weights of all layers in one matrix with a row per member."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["BagAdamW"]

BETA1, BETA2, EPS = 0.9, 0.99, 1e-8


class BagAdamW:
    """AdamW whose state is flat: a step is a handful of operations, however many layers there are.

    The parameters of the module become views of one vector `weights`, their gradients views of
    another, so that members can be clipped, compared and restored. (The optimisers of torch also
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
        parameters = list(module.parameters())
        self.members = len(parameters[0])
        self.weights = torch.cat([p.detach().flatten() for p in parameters])
        self.grads = torch.zeros_like(self.weights)
        ranks = torch.arange(self.members, device=self.weights.device)
        # Which member each weight belongs to.
        self.owner = torch.cat([ranks.repeat_interleave(p[0].numel()) for p in parameters])
        start = 0
        for p in parameters:
            own = slice(start, start + p.numel())
            p.data, p.grad = self.weights[own].view(p.shape), self.grads[own].view(p.shape)
            start = own.stop
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.average = self.weights.clone()
        self.steps = 0

    @torch.no_grad()
    def step(self, rate: float, limit: float = 1.0) -> None:
        """One step of each member with its gradient scaled to a norm of at most `limit`.

        A gradient that is not finite is dropped. The gradients are zero afterwards.
        """
        grads = self.grads
        norm = grads.new_zeros(self.members).index_add_(0, self.owner, grads.square()).sqrt_()
        if not bool(norm.isfinite().all()):
            grads.masked_fill_(~norm.isfinite()[self.owner], 0.0)
            norm = norm.nan_to_num(0.0, 0.0)
        if bool((norm > limit).any()):
            grads.mul_((limit / norm.clamp_min(limit))[self.owner])
        self.steps += 1
        self.mean.lerp_(grads, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(grads, grads, value=1 - BETA2)
        correction = (1 - BETA2**self.steps) ** 0.5
        denominator = self.square.sqrt().div_(correction).add_(EPS)
        self.weights.mul_(1 - rate * self.weight_decay)
        self.weights.addcdiv_(self.mean, denominator, value=-rate / (1 - BETA1**self.steps))
        grads.zero_()
        # The average forgets the start quickly.
        keep = min(self.averaging, self.steps / (self.steps + 10))
        self.average.lerp_(self.weights, 1 - keep)
