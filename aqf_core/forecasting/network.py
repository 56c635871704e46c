"""The one network of all forecasters: an LSTM that reads a window step by step.

At step t it reads the previous value, lagged values, the median of seven seasons, calendar and
covariates, an embedding of the series and the logarithms of scale and spread. It emits the
parameters of the next value:

    value_t = location + scale * (base_t + unit * spread * y_t),      y_t ~ output(h_t)

where h_t is linear in the state of the LSTM and base_t is a learned linear function of the past
values that starts at its least-squares fit. The spread of a window is the mean distance of its
context from the season before, and `unit` the robust size of what the fit leaves over in terms of
it. The output thus describes a standardised departure from a seasonal forecast, whatever the size
of the series.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..conditioners.recurrent import RecurrentLayer
from .outputs import Output
from .windows import Batch

__all__ = ["ForecastNetwork"]

# Ridge of the least-squares start, relative to the number of observations.
RIDGE = 1e-3


class ForecastNetwork(nn.Module):
    """See the module docstring.

    Args:
        output: distribution family of a step.
        series: number of series that have an embedding; one more is for unknown ones.
        past: number of past values read at each step (previous, lagged, usual).
        known: number of known inputs.
        hidden: state sizes of the LSTM layers.
        embedding: size of the embedding of a series.
        dropout: share of inputs of the second and further layers dropped in training.

    Example:
        >>> from aqf_core.forecasting.outputs import GaussianOutput
        >>> network = ForecastNetwork(GaussianOutput(), series=3, past=2, known=5, hidden=(8, 8))
        >>> network.inputs
        29
    """

    unit: Tensor
    log_level: Tensor

    def __init__(
        self,
        output: Output,
        series: int,
        past: int,
        known: int,
        hidden: Sequence[int] = (40, 40, 40),
        embedding: int = 20,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.output, self.past, self.dropout = output, past, dropout
        self.embedding_size = embedding
        self.embedding = nn.Embedding(series + 1, embedding)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.inputs = past + known + embedding + 2
        sizes = [self.inputs, *hidden]
        self.layers = nn.ModuleList(
            RecurrentLayer(a, b, "lstm") for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.head = nn.Linear(hidden[-1], output.n_params)
        nn.init.uniform_(self.head.weight, -0.1 / hidden[-1] ** 0.5, 0.1 / hidden[-1] ** 0.5)
        nn.init.zeros_(self.head.bias)
        self.base = nn.Linear(past, 2)
        self.register_buffer("unit", torch.ones(()))
        self.register_buffer("log_level", torch.zeros(2, 2))

    @property
    def cells(self) -> list[RecurrentLayer]:
        """The recurrent layers."""
        return cast("list[RecurrentLayer]", list(self.layers))

    @torch.no_grad()
    def start_from(self, batch: Batch, centred: bool = False) -> None:
        """Set the base to the least-squares fit on some windows, and unit and log scale by it."""
        for kind, seen in enumerate((False, True)):
            rows = (batch.mask > 0) & ((batch.known[..., -1] > 0) == seen)
            x, y = batch.past[rows].double(), batch.target[rows].double()
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
            weights = _departures(x, y) if centred else _least_squares(x, y)
            self.base.weight[kind] = weights[:-1]
            self.base.bias[kind] = weights[-1]
        left = (y - x @ weights).abs() / batch.spread[:, None].expand_as(rows)[rows]
        spread = 1.4826 * left.median()
        # Of a series that mostly repeats itself exactly, the median of the rest may be 0.
        self.unit.copy_(torch.maximum(spread, 0.1 * left.mean()).clamp_min(1e-6))
        levels = torch.stack([batch.scale, batch.spread], -1).log()
        self.log_level[0] = levels.mean(0)
        self.log_level[1] = levels.std(0, correction=0).clamp_min(0.1)

    def read(self, batch: Batch) -> Tensor:
        """Inputs (B, L, inputs) of all steps: past, known, embedding, log scale."""
        steps = batch.past.shape[1]
        levels = torch.stack([batch.scale, batch.spread], -1).log()
        levels = ((levels - self.log_level[0]) / self.log_level[1]).clamp(-4, 4)
        fixed = torch.cat([self.embedding(batch.ids), levels], -1)
        fixed = fixed[:, None].expand(-1, steps, -1)
        return torch.cat([batch.past - 1.0, batch.known, fixed], -1)

    def forward(self, batch: Batch) -> Tensor:
        """Loss (B, L) of every step of B windows, given all steps before it."""
        h = self.parameters_of(self.read(batch))
        y = (batch.target - self.base_of(batch)) / (self.unit * batch.spread[:, None])
        return self.output.loss(h, y)

    def base_of(self, batch: Batch) -> Tensor:
        """The linear forecast (B, L): one without, one with the previous value observed."""
        without, with_it = self.base(batch.past).unbind(-1)
        return torch.lerp(without, with_it, batch.known[..., -1])

    def parameters_of(self, values: Tensor) -> Tensor:
        """Output parameters (B, L, P) of inputs (B, L, inputs)."""
        for depth, layer in enumerate(self.cells):
            if depth:
                values = F.dropout(values, self.dropout, self.training)
            values = layer(values)
        return self.head(F.dropout(values, self.dropout, self.training))  # type: ignore[no-any-return]

    def read_context(self, values: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Output parameters (B, L, P) of inputs (B, L, inputs), and the states of every layer
        after them as in `states`."""
        hidden, memory = [], []
        for depth, layer in enumerate(self.cells):
            if depth:
                values = F.dropout(values, self.dropout, self.training)
            values, h, c = layer.run(values)
            hidden.append(h)
            memory.append(c)
        return self.head(F.dropout(values, self.dropout, self.training)), hidden, memory

    def states(self, values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Hidden states and memories (B, H) of every layer after reading (B, L, inputs)."""
        hidden, memory = [], []
        for layer in self.cells:
            values, h, c = layer.run(values)
            hidden.append(h)
            memory.append(c)
        return hidden, memory


def _least_squares(x: Tensor, y: Tensor) -> Tensor:
    """Weights (K,) with which x (N, K) comes nearest to y (N,)."""
    ridge = RIDGE * (len(x) + 1) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    weights: Tensor = torch.linalg.solve(x.t() @ x + ridge, x.t() @ y)
    return weights


def _departures(x: Tensor, y: Tensor) -> Tensor:
    """The same for past values and 1, drawn towards the last past value instead of towards 0.

    What is fitted are departures from it, each in units of its own size.
    """
    usual = x[:, -2:-1]
    parts = torch.cat([x[:, :-2] - usual, usual, x[:, -1:]], 1)
    size = parts.square().mean(0).sqrt().clamp_min(1e-12)
    found = _least_squares(parts / size, y - usual[:, 0]) / size
    weights = found.clone()
    weights[-2] = 1.0 + found[-2] - found[:-2].sum()
    return weights
