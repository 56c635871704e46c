"""Learning from rolled-out paths: what a network says about a step after reading its own values.

A network that only ever predicts one step from the truth never sees its own errors, and its paths
are too sure of themselves. Here m paths per window step on from their own draws, with gradients,
and every step of the horizon is scored by the fair CRPS of the m values there (`sample_crps`).
Its mean over draws is the CRPS of the distribution that the paths are drawn from, whatever m is;
half of it is comparable with the quantile loss of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..losses import sample_crps
from .network import ForecastNetwork
from .windows import Batch

__all__ = ["read_own_values", "rolled_losses"]


def read_own_values(batch: Batch, context: int) -> Batch:
    """Blind windows whose values after the first step of the horizon count as observed."""
    known = batch.known.clone()
    known[:, context + 1 :, -1] = 1.0
    return batch._replace(known=known)


def rolled_losses(
    network: ForecastNetwork, batch: Batch, context: int, lags: tuple[int, ...], paths: int
) -> Tensor:
    """Losses (B, L) of standardised values: those of one step within the context, given the truth
    before it, and half the CRPS of rolled-out paths within the horizon.

    Args:
        network: its output can be differentiated with respect to a draw.
        batch: blind windows.
        context: steps before the origin.
        lags: how many steps ago the further past values are.
        paths: paths m per window, at least 2.
    """
    batch = read_own_values(batch, context)
    inputs = network.read(batch)
    h, hidden, memory = network.read_context(inputs[:, :context])
    base = network.base_of(batch)
    unit = (network.unit * batch.spread)[:, None]
    y = (batch.target - base) / unit
    before = network.output.loss(h, y[:, :context])
    values = _walk(network, batch, inputs[:, context:], context, lags, paths, hidden, memory)
    crps = sample_crps(values.movedim(-1, 0), batch.target[:, context:], reduction="none")
    after = 0.5 * crps / unit
    return torch.cat([before, after], 1)


def _walk(
    network: ForecastNetwork,
    batch: Batch,
    inputs: Tensor,
    context: int,
    lags: tuple[int, ...],
    paths: int,
    hidden: list[Tensor],
    memory: list[Tensor],
) -> Tensor:
    """Values (B, H, m) of paths relative to the scale, from the states after the context."""
    windows, horizon = inputs.shape[:2]
    back = (1, *lags)
    own = [k for k, lag in enumerate(back) if lag < horizon]
    cells = network.cells
    states = [h.t().repeat_interleave(paths, 1) for h in hidden]  # (hidden, B * m)
    cells_memory = [c.t().repeat_interleave(paths, 1) for c in memory]
    first = cells[0]
    fixed = torch.einsum("bjc,gc->jgb", inputs, first.weight_ih) + first.bias_ih[:, None]
    base = network.base_of(batch)[:, context:]
    unit = (network.unit * batch.spread)[:, None]
    noise = torch.randn(horizon, windows * paths, device=inputs.device)
    values: list[Tensor] = []
    for j in range(horizon):
        gates, start = fixed[j].repeat_interleave(paths, 1), base[:, j, None]
        for k in own:
            if back[k] <= j:
                # How far a forecast that is read again differs from what stood in for it.
                change = values[j - back[k]] - batch.past[:, context + j, k, None]
                start = start + network.base.weight[1, k] * change
                gates = gates + first.weight_ih[:, k, None] * change.reshape(1, -1)
        for depth, cell in enumerate(cells):
            if depth:
                gates = torch.addmm(cell.bias_ih[:, None], cell.weight_ih, states[depth - 1])
            states[depth], cells_memory[depth] = cell.step(
                gates, states[depth], cells_memory[depth]
            )
        h = torch.addmm(network.head.bias[:, None], network.head.weight, states[-1])
        y = network.output.sample(noise[j], h).view(windows, paths)
        values.append(start + unit * y)
    return torch.stack(values, 1)
