"""What a trained network says about the horizon: quantiles of every step, and joint paths.

Quantiles are read off directly: a blind window knows nothing from its origin on, and the output at
step j is the distribution of that step. Paths step on from their own values, which is where their
dependence over time comes from. Every window is read once, then all its paths advance together as
columns of feature-major matrices; what they share is computed once, and no gradients are kept. The
noise of a step is a random permutation of a randomly shifted lattice over the paths of a window
(Latin hypercube sampling): each path by itself is an exact draw, and averages over paths have less
noise than with independent draws.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..levels import lattice_levels
from ..normal import random_level_to_base
from .network import ForecastNetwork
from .rollout import read_own_values
from .stepping import LSTMStack, reorder_gates
from .windows import Batch, WindowShape

__all__ = ["direct_quantiles", "sample_paths"]

# Columns (windows x paths) that are worked on together: small enough for the cache.
COLUMNS = 4096

Support = tuple[float, float] | None


@torch.no_grad()
def direct_quantiles(
    network: ForecastNetwork, batch: Batch, shape: WindowShape, z: Tensor, support: Support = None
) -> Tensor:
    """Quantiles (B, K, horizon) in the units of the series.

    Args:
        network: in evaluation mode.
        batch: blind windows.
        shape: of the windows.
        z: base values of the levels, (K, horizon).
        support: values are kept within these bounds.
    """
    h = network.parameters_of(network.read(batch))[:, shape.context :]  # (B, H, P)
    base = network.base_of(batch)[:, shape.context :, None]
    unit = (network.unit * batch.spread)[:, None, None]
    y = network.output.quantiles(z.t().to(h), h)  # (B, H, K)
    values = torch.addcmul(base, unit, y) * batch.scale[:, None, None]
    values = values + batch.location[:, None, None]
    values = values if support is None else values.clamp(*support)
    return values.movedim(-1, 1)


@torch.no_grad()
def sample_paths(
    network: ForecastNetwork,
    batch: Batch,
    shape: WindowShape,
    n: int,
    generator: torch.Generator | None = None,
    support: Support = None,
) -> Tensor:
    """Rolled-out paths (B, n, horizon) in the units of the series.

    Args:
        network: in evaluation mode.
        batch: blind windows.
        shape: of the windows.
        n: paths per window.
        generator: source of the noise, on the device of the network.
        support: values are kept within these bounds.
    """
    batch = read_own_values(batch, shape.context)
    inputs = network.read(batch)
    hidden, memory = network.states(inputs[:, : shape.context])
    walk = None
    paths = inputs.new_empty(len(inputs), n, shape.horizon)
    size = max(1, COLUMNS // n)
    for i in range(0, len(inputs), size):
        part = slice(i, i + size)
        window = Batch(*(t[part] for t in batch))
        if walk is None or walk.windows != len(window.scale):
            walk = _Walk(network, shape, len(window.scale), n)
        walk.stack.start([h[part] for h in hidden], [c[part] for c in memory], n)
        paths[part] = walk.run(window, inputs[part, shape.context :], generator, support)
    return paths


class _Walk:
    """The steps of n paths for each of B windows, in memory that is used again."""

    def __init__(self, network: ForecastNetwork, shape: WindowShape, windows: int, n: int) -> None:
        self.network, self.shape, self.windows, self.n = network, shape, windows, n
        self.back = (1, *shape.lags)
        # Past values that may be forecasts themselves; only these differ among paths.
        self.own = [k for k, back in enumerate(self.back) if back < shape.horizon]
        self.stack = LSTMStack(network.cells, self.own, windows * n)
        self.draw: Callable[[Tensor, Tensor], Tensor] | None = None

    def run(
        self, batch: Batch, inputs: Tensor, generator: torch.Generator | None, support: Support
    ) -> Tensor:
        """Paths (B, n, horizon) from the present state, given inputs (B, horizon, inputs)."""
        network, context = self.network, self.shape.context
        first = network.cells[0]
        fixed = torch.einsum("bjc,gc->jgb", inputs, first.weight_ih) + first.bias_ih[:, None]
        fixed = torch.stack([reorder_gates(gates) for gates in fixed])
        base = network.base_of(batch)[:, context:]
        unit, scale = (network.unit * batch.spread)[:, None], batch.scale[:, None]
        location = batch.location[:, None]
        path = inputs.new_empty(self.shape.horizon, self.windows, self.n)
        for j in range(self.shape.horizon):
            start = base[:, j, None]
            for row, k in enumerate(self.own):
                # How far a forecast that is read again differs from what stood in for it.
                change = self.stack.varying[row].view(self.windows, self.n)
                if self.back[k] <= j:
                    stand_in = batch.past[:, context + j, k, None]
                    torch.sub(path[j - self.back[k]], stand_in, out=change)
                    start = start + network.base.weight[1, k] * change
                else:
                    change.zero_()
            state = self.stack.step(fixed[j])
            h = torch.addmm(network.head.bias[:, None], network.head.weight, state)
            z = self._noise(generator, h)
            if self.draw is None:
                self.draw = network.output.sampler(z, h)
            y = self.draw(z, h).view(self.windows, self.n)
            torch.addcmul(start, unit, y, out=path[j])
            if support is not None:
                low, high = ((bound - location) / scale for bound in support)
                path[j].clamp_(low, high)
        return (path * scale + location).movedim(0, -1)

    def _noise(self, generator: torch.Generator | None, like: Tensor) -> Tensor:
        """Standard normal noise (B * n,)."""
        u = lattice_levels(self.n, (self.windows,), generator=generator, device=like.device)
        order = torch.rand(u.shape, generator=generator, device=like.device).argsort(-1)
        return random_level_to_base(u.gather(-1, order).reshape(-1))
