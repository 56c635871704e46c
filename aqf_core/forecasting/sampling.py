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

import torch
from torch import Tensor

from ..conditioners.recurrent import RecurrentLayer
from ..levels import lattice_levels
from ..normal import random_level_to_base
from .network import ForecastNetwork
from .windows import Batch, WindowShape

__all__ = ["direct_quantiles", "sample_paths"]

# Columns (windows x paths) that are worked on together: small enough for the cache.
COLUMNS = 8192

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
    base = network.base_of(batch)[:, shape.context :]
    windows, horizon, size = h.shape
    levels = len(z)
    columns = h.reshape(-1, size).t().repeat_interleave(levels, 1)
    noise = z.t().to(h).expand(windows, horizon, levels).reshape(-1)
    y = network.output.sample(noise, columns).view(windows, horizon, levels)
    unit = (network.unit * batch.spread)[:, None, None]
    values = (base[..., None] + unit * y) * batch.scale[:, None, None]
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
    # Forecasts that are read again count as observed.
    known = batch.known.clone()
    known[:, shape.context + 1 :, -1] = 1.0
    batch = batch._replace(known=known)
    inputs = network.read(batch)
    hidden, memory = network.states(inputs[:, : shape.context])
    base = network.base_of(batch)[:, shape.context :]
    size = max(1, COLUMNS // n)
    parts = []
    for i in range(0, len(inputs), size):
        part = slice(i, i + size)
        walk = _Walk(network, shape, n)
        walk.scale, walk.past = batch.scale[part], batch.past[part, shape.context :]
        walk.base, walk.unit = base[part].t(), (network.unit * batch.spread[part])[:, None]
        walk.read(inputs[part, shape.context :])
        walk.hidden = [_spread(h[part], n) for h in hidden]
        walk.memory = [_spread(c[part], n) for c in memory]
        parts.append(walk.run(generator, support))
    return torch.cat(parts)


def _spread(state: Tensor, n: int) -> Tensor:
    """(B, H) for windows -> (H, B * n) for their paths."""
    return state.t().repeat_interleave(n, 1)


class _Walk:
    """The steps of the paths of B windows.

    Attributes:
        scale: (B,).
        past: (B, horizon, past), values that are known before the first step, or stand-ins.
        base: (horizon, B), the linear forecast from these.
        unit: (B, 1), of the output.
        hidden, memory: state of every layer, (H, B * n).
    """

    scale: Tensor
    past: Tensor
    base: Tensor
    unit: Tensor
    hidden: list[Tensor]
    memory: list[Tensor]

    def __init__(self, network: ForecastNetwork, shape: WindowShape, n: int) -> None:
        self.network, self.shape, self.n = network, shape, n
        self.back = (1, *shape.lags)

    def read(self, inputs: Tensor) -> None:
        """What inputs (B, horizon, inputs) contribute to the first layer: (horizon, gates, B)."""
        first = self.network.cells[0]
        self.known = torch.einsum("bjc,gc->jgb", inputs, first.weight_ih) + first.bias_ih[:, None]

    def run(self, generator: torch.Generator | None, support: Support) -> Tensor:
        path: list[Tensor] = []
        low, high = (
            (None, None) if support is None else (bound / self.scale[:, None] for bound in support)
        )
        for j in range(self.shape.horizon):
            value = self._step(j, path, self._noise(generator))
            path.append(value if low is None else value.clamp(low, high))
        return torch.stack(path, -1) * self.scale[:, None, None]  # (B, n, horizon)

    def _noise(self, generator: torch.Generator | None) -> Tensor:
        """Standard normal noise (B * n,)."""
        size, device = (len(self.scale), self.n), self.scale.device
        u = lattice_levels(self.n, size[:1], generator=generator, device=device)
        order = torch.rand(size, generator=generator, device=device).argsort(-1)
        return random_level_to_base(u.gather(-1, order).reshape(-1))

    def _step(self, j: int, path: list[Tensor], z: Tensor) -> Tensor:
        """Values (B, n) of step j, in units of the scale."""
        network = self.network
        first, *others = network.cells
        fixed, base = self.known[j][:, :, None], self.base[j][:, None]
        # Past values that are themselves forecasts: how far they differ from their stand-ins.
        for k, back in enumerate(self.back):
            if back <= j:
                change = path[j - back] - self.past[:, j, k, None]
                fixed = fixed + first.weight_ih[:, k, None, None] * change
                base = base + network.base.weight[1, k] * change
        inputs = fixed.expand(-1, -1, self.n).reshape(fixed.shape[0], -1)
        self._advance(0, first, inputs)
        for depth, layer in enumerate(others, 1):
            below = torch.addmm(layer.bias_ih[:, None], layer.weight_ih, self.hidden[depth - 1])
            self._advance(depth, layer, below)
        h = torch.addmm(network.head.bias[:, None], network.head.weight, self.hidden[-1])
        y = network.output.sample(z, h).view(-1, self.n)
        return torch.addcmul(base, self.unit, y)

    def _advance(self, depth: int, layer: RecurrentLayer, inputs: Tensor) -> None:
        self.hidden[depth], self.memory[depth] = layer.step(
            inputs, self.hidden[depth], self.memory[depth]
        )
