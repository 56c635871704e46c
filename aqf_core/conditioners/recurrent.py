r"""A recurrent network that reads the variables one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from ..validation import lookup, tracing
from .base import Conditioner, flat_context, resolve_order, spread, to_batch

__all__ = ["Recurrent"]

GATES = {"gru": 3, "lstm": 4}


class RecurrentLayer(nn.Module):
    """One LSTM or GRU layer that runs over a whole sequence or one step at a time.

    The weights are laid out as in `nn.LSTM` and `nn.GRU`. Those modules themselves cannot be
    compiled, not even if only their weights are used, so this one calls the fused kernels.

    Args:
        inputs: input size.
        hidden: state size H.
        cell: "lstm" or "gru".
    """

    def __init__(self, inputs: int, hidden: int, cell: str) -> None:
        super().__init__()
        gates = lookup(cell, GATES, "cell") * hidden
        self.cell = cell
        self.hidden = hidden
        self.weight_ih = nn.Parameter(torch.empty(gates, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates, hidden))
        self.bias_ih = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates))
        bound = 1.0 / math.sqrt(hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, values: Tensor) -> Tensor:
        """Hidden states (N, T, H) for a sequence (N, T, inputs), by the fused kernel."""
        return self.run(values)[0]

    def run(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states (N, T, H), and after the last step the hidden state and memory (N, H)."""
        zeros = values.new_zeros(1, values.shape[0], self.hidden)
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        # biases, one layer, no dropout, training, one direction, batch first
        flags = (True, 1, 0.0, self.training, False, True)
        if self.cell == "lstm":
            states, h, c = torch.lstm(values, (zeros, zeros), weights, *flags)
            return states, h[0], c[0]
        states, h = torch.gru(values, zeros, weights, *flags)
        return states, h[0], h[0]

    def extra_repr(self) -> str:
        return f"{self.weight_ih.shape[1]}, {self.hidden}, cell={self.cell!r}"

    def step(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One step in feature-major layout.

        Args:
            inputs: W_ih x + b_ih, shape (gates * H, N).
            h: hidden state (H, N).
            c: memory (H, N) of an LSTM; a GRU has none and returns its hidden state twice.
        """
        gates = torch.addmm(self.bias_hh[:, None], self.weight_hh, h)
        if self.cell == "lstm":
            i, f, g, o = (inputs + gates).chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
        (in_r, in_z, in_n), (r, z, n) = inputs.chunk(3), gates.chunk(3)
        z = torch.sigmoid(in_z + z)
        n = torch.tanh(in_n + torch.sigmoid(in_r + r) * n)
        h = n + z * (h - n)
        return h, h


@dataclass
class RecurrentState:
    """Feature-major hidden states (H, N) and memory cells (LSTM only), layer by layer.

    `fixed` is the part of the first layer's input that stays the same: bias and context.
    """

    batch_shape: tuple[int, ...]
    fixed: Tensor
    hidden: list[Tensor]
    memory: list[Tensor]


class Recurrent(Conditioner):
    r"""LSTM or GRU conditioner: h_t is a linear function of the state after reading x_<t.

    At step t the network reads the previous value (0 at the start), a learned embedding of the
    variable to be generated, and the context. In eager mode the parallel pass uses PyTorch's
    fused recurrent kernels; when it is compiled, exported or transformed, where those are not
    available, the same weights run through the incremental step.

    Args:
        features: number of variables d.
        context: number of context features, 0 for none.
        n_params: number of parameters P per variable.
        hidden: state size of every recurrent layer.
        cell: "lstm" or "gru".
        order: "natural", "reversed", "random", or the feature indices in order of generation.
        embedding: size of the embedding of the position.
        init_scale: factor on the initial weights of the output layer.
        seed: seed of the random order.

    Example:
        >>> conditioner = Recurrent(features=3, n_params=5, hidden=(8, 8), cell="gru")
        >>> conditioner(torch.zeros(7, 3)).shape
        torch.Size([7, 3, 5])
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        n_params: int = 2,
        hidden: Sequence[int] = (64,),
        cell: str = "lstm",
        order: str | Sequence[int] = "natural",
        embedding: int = 8,
        init_scale: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(features, context, n_params, resolve_order(order, features, seed))
        if not hidden or any(size < 1 for size in hidden):
            raise ShapeError(f"a recurrent conditioner needs hidden sizes >= 1, got {hidden}.")
        if embedding < 1:
            raise ShapeError(f"embedding must be at least 1, got {embedding}.")
        sizes = [1 + embedding + context, *hidden]
        self.layers = nn.ModuleList(
            RecurrentLayer(a, b, cell) for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.position = nn.Parameter(torch.randn(features, embedding))
        bound = init_scale / math.sqrt(sizes[-1])
        self.weight = nn.Parameter(torch.empty(n_params, sizes[-1]).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(features, n_params))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if tracing():
            return self.stepwise(x, context)
        batch_shape = self.batch_shape(x, context)
        natural = self.order == tuple(range(self.features))
        x = x if natural else x[..., self.order_index]
        prev = F.pad(x[..., :-1], (1, 0)).expand(*batch_shape, self.features)
        parts = [prev.unsqueeze(-1), self.position.expand(*batch_shape, *self.position.shape)]
        if context is not None:
            parts.append(context.unsqueeze(-2).expand(*batch_shape, self.features, self.context))
        values = torch.cat(parts, dim=-1)
        values = values.reshape(-1, self.features, values.shape[-1])
        for layer in self.layers:
            values = layer(values)
        h = F.linear(values, self.weight) + self.bias
        h = h.reshape(*batch_shape, self.features, self.n_params)
        return h if natural else h[..., self.order_index.argsort(), :]

    def start(self, batch_shape: Sequence[int], context: Tensor | None = None) -> RecurrentState:
        first = self._cells()[0]
        fixed = first.bias_ih.unsqueeze(-1)
        if context is not None:
            rows, lead = flat_context(context, batch_shape)
            weight = first.weight_ih[:, -self.context :]
            fixed = spread(torch.addmm(fixed, weight, rows.t()), lead, batch_shape)
        n = math.prod(batch_shape)
        zeros = [fixed.new_zeros(layer.hidden, n) for layer in self._cells()]
        return RecurrentState(tuple(batch_shape), fixed, zeros, list(zeros))

    def step(
        self, state: RecurrentState, t: int, x_prev: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        layers = self._cells()
        weight = layers[0].weight_ih
        embedded = weight[:, 1 : 1 + self.position.shape[1]] @ self.position[t]
        inputs = state.fixed + embedded[:, None]
        if x_prev is not None:
            inputs = torch.addmm(inputs, weight[:, :1], x_prev.reshape(1, -1))
        hidden: list[Tensor] = []
        memory: list[Tensor] = []
        for depth, layer in enumerate(layers):
            if depth:
                inputs = torch.addmm(layer.bias_ih[:, None], layer.weight_ih, hidden[-1])
            h, c = layer.step(inputs, state.hidden[depth], state.memory[depth])
            hidden.append(h)
            memory.append(c)
        h = torch.addmm(self.bias[t][:, None], self.weight, hidden[-1])
        state = RecurrentState(state.batch_shape, state.fixed, hidden, memory)
        return to_batch(h, state.batch_shape), state

    def _cells(self) -> list[RecurrentLayer]:
        return cast("list[RecurrentLayer]", list(self.layers))
