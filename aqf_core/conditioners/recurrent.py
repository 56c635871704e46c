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

CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"gru": nn.GRU, "lstm": nn.LSTM}


class RecurrentLayer(nn.RNNBase):
    """For type checkers: an `nn.LSTM` or `nn.GRU` with one layer and its weights."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor


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
        kind = lookup(cell, CELLS, "cell")
        self.cell = cell
        sizes = [1 + embedding + context, *hidden]
        self.layers = nn.ModuleList(
            kind(a, b, batch_first=True) for a, b in zip(sizes[:-1], sizes[1:], strict=True)
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
        values = torch.cat(parts, dim=-1).flatten(0, -3) if batch_shape else torch.cat(parts, -1)
        for layer in self.layers:
            values = layer(values)[0]
        h = F.linear(values, self.weight) + self.bias
        h = h.reshape(*batch_shape, self.features, self.n_params)
        return h if natural else h[..., self.order_index.argsort(), :]

    def start(self, batch_shape: Sequence[int], context: Tensor | None = None) -> RecurrentState:
        first = self._cells()[0]
        fixed = first.bias_ih_l0.unsqueeze(-1)
        if context is not None:
            rows, lead = flat_context(context, batch_shape)
            weight = first.weight_ih_l0[:, -self.context :]
            fixed = spread(torch.addmm(fixed, weight, rows.t()), lead, batch_shape)
        n = math.prod(batch_shape)
        zeros = [fixed.new_zeros(layer.hidden_size, n) for layer in self._cells()]
        return RecurrentState(tuple(batch_shape), fixed, zeros, list(zeros))

    def step(
        self, state: RecurrentState, t: int, x_prev: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        layers = self._cells()
        weight = layers[0].weight_ih_l0
        embedded = weight[:, 1 : 1 + self.position.shape[1]] @ self.position[t]
        inputs = state.fixed + embedded[:, None]
        if x_prev is not None:
            inputs = torch.addmm(inputs, weight[:, :1], x_prev.reshape(1, -1))
        hidden: list[Tensor] = []
        memory: list[Tensor] = []
        for depth, layer in enumerate(layers):
            if depth:
                inputs = torch.addmm(layer.bias_ih_l0[:, None], layer.weight_ih_l0, hidden[-1])
            if self.cell == "lstm":
                h, c = lstm_cell(layer, inputs, state.hidden[depth], state.memory[depth])
            else:
                h = c = gru_cell(layer, inputs, state.hidden[depth])
            hidden.append(h)
            memory.append(c)
        h = torch.addmm(self.bias[t][:, None], self.weight, hidden[-1])
        state = RecurrentState(state.batch_shape, state.fixed, hidden, memory)
        return to_batch(h, state.batch_shape), state

    def _cells(self) -> list[RecurrentLayer]:
        return cast("list[RecurrentLayer]", list(self.layers))

    def extra_repr(self) -> str:
        return super().extra_repr() + f", cell={self.cell}"


def lstm_cell(layer: RecurrentLayer, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One LSTM step in feature-major layout.

    Args:
        layer: the `nn.LSTM` that owns the weights.
        inputs: W_ih x + b_ih, shape (4H, N) or (4H, 1).
        h: hidden state (H, N).
        c: memory (H, N).
    """
    gates = inputs + torch.addmm(layer.bias_hh_l0[:, None], layer.weight_hh_l0, h)
    i, f, g, o = gates.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(layer: RecurrentLayer, inputs: Tensor, h: Tensor) -> Tensor:
    """One GRU step in feature-major layout; arguments as in `lstm_cell`, with 3H gates."""
    gates = torch.addmm(layer.bias_hh_l0[:, None], layer.weight_hh_l0, h)
    in_r, in_z, in_n = inputs.chunk(3)
    r, z, n = gates.chunk(3)
    z = torch.sigmoid(in_z + z)
    n = torch.tanh(in_n + torch.sigmoid(in_r + r) * n)
    return n + z * (h - n)
