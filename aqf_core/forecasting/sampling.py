"""Sample paths: every window is read once, then all its paths step on together.

The paths are columns of feature-major matrices, what is the same for all paths of a window is
computed once for it, and no gradients are kept. The noise of a step is a random permutation of a
randomly shifted lattice over the paths of a window (Latin hypercube sampling): each path by itself
is an exact draw, and quantiles over paths have far less noise than with independent draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..conditioners.recurrent import RecurrentLayer
from ..levels import lattice_levels
from ..normal import random_level_to_base
from .network import ForecastNetwork
from .windows import Batch, WindowShape

__all__ = ["sample_paths"]

# Columns (windows x paths) that are worked on together: small enough for the cache.
COLUMNS = 8192


@torch.no_grad()
def sample_paths(
    network: ForecastNetwork,
    batch: Batch,
    shape: WindowShape,
    n: int,
    generator: torch.Generator | None = None,
    support: tuple[float, float] | None = None,
) -> Tensor:
    """Paths (B, n, horizon) in the units of the series.

    Args:
        network: in evaluation mode.
        batch: windows; what their horizon holds is not looked at.
        shape: of the windows.
        n: paths per window.
        generator: source of the noise, on the device of the network.
        support: values are kept within these bounds.
    """
    inputs = network.read(batch)
    hidden, memory = network.states(inputs[:, : shape.context])
    size = max(1, COLUMNS // n)
    parts = []
    for i in range(0, len(inputs), size):
        part = slice(i, i + size)
        walk = _Walk(network, batch, inputs[part, shape.context :], shape, part, n, support)
        walk.hidden = [_spread(h[part], n) for h in hidden]
        walk.memory = [_spread(c[part], n) for c in memory]
        parts.append(walk.run(generator))
    return torch.cat(parts)


def _spread(state: Tensor, n: int) -> Tensor:
    """(B, H) for windows -> (H, B * n) for their paths."""
    return state.t().repeat_interleave(n, 1)


class _Walk:
    """The steps of the paths of some windows."""

    hidden: list[Tensor]
    memory: list[Tensor]

    def __init__(
        self,
        network: ForecastNetwork,
        batch: Batch,
        inputs: Tensor,
        shape: WindowShape,
        part: slice,
        n: int,
        support: tuple[float, float] | None,
    ) -> None:
        self.network, self.shape, self.n = network, shape, n
        self.windows = len(inputs)
        self.scale = batch.scale[part]
        # Values of the past that are known before the first step: (B, horizon, past).
        self.past = batch.past[part, shape.context :]
        first = network.cells[0]
        self.known = torch.einsum("bjc,gc->jgb", inputs, first.weight_ih) + first.bias_ih[:, None]
        self.base = network.base_of(self.past).t()  # (horizon, B)
        self.back = (1, *shape.lags)
        if support is not None:
            low, high = (torch.tensor(s) / self.scale[:, None] for s in support)
            self.low, self.high = low, high
        self.bounded = support is not None

    def run(self, generator: torch.Generator | None) -> Tensor:
        path: list[Tensor] = []
        for j in range(self.shape.horizon):
            z = self._noise(generator)
            path.append(self._step(j, path, z))
        values = torch.stack(path, -1)  # (B, n, horizon)
        return values * self.scale[:, None, None]

    def _noise(self, generator: torch.Generator | None) -> Tensor:
        device = self.scale.device
        u = lattice_levels(self.n, (self.windows,), generator=generator, device=device)
        order = torch.rand(self.windows, self.n, generator=generator, device=device).argsort(-1)
        return random_level_to_base(u.gather(-1, order).reshape(-1))

    def _step(self, j: int, path: list[Tensor], z: Tensor) -> Tensor:
        """Values (B, n) of step j, in units of the scale."""
        network = self.network
        first, *others = network.cells
        fixed, base = self.known[j][:, :, None], self.base[j][:, None]
        # Past values that are themselves forecasts: how far they differ from what was filled in.
        for k, back in enumerate(self.back):
            if back <= j:
                change = path[j - back] - self.past[:, j, k, None]
                fixed = fixed + first.weight_ih[:, k, None, None] * change
                base = base + network.base.weight[0, k] * change
        inputs = fixed.expand(-1, -1, self.n).reshape(fixed.shape[0], -1)
        self._advance(0, first, inputs)
        for depth, layer in enumerate(others, 1):
            below = torch.addmm(layer.bias_ih[:, None], layer.weight_ih, self.hidden[depth - 1])
            self._advance(depth, layer, below)
        h = torch.addmm(network.head.bias[:, None], network.head.weight, self.hidden[-1])
        y = network.output.sample(z, h).view(self.windows, self.n)
        value = torch.addcmul(base, network.unit, y)
        return value.clamp(self.low, self.high) if self.bounded else value

    def _advance(self, depth: int, layer: RecurrentLayer, inputs: Tensor) -> None:
        self.hidden[depth], self.memory[depth] = layer.step(
            inputs, self.hidden[depth], self.memory[depth]
        )
