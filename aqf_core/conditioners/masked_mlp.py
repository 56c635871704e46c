r"""A masked multi-layer perceptron whose units are sorted by what they may see."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from ..validation import lookup, tracing
from .base import Conditioner, flat_context, resolve_order, spread, to_batch

__all__ = ["MaskedMLP"]

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"relu": F.relu, "silu": F.silu, "elu": F.elu}


class MaskedLinear(nn.Module):
    r"""A linear layer y = (W * M) x + b with M[i, j] = 1 where in_degrees[j] <= out_degrees[i].

    Args:
        in_degrees: degree of every input unit.
        out_degrees: degree of every output unit.
        scale: factor on the initial weights and biases.
    """

    mask: Tensor

    def __init__(
        self, in_degrees: Sequence[int], out_degrees: Sequence[int], scale: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(len(out_degrees), len(in_degrees)))
        self.bias = nn.Parameter(torch.empty(len(out_degrees)))
        mask = torch.tensor(in_degrees)[None, :] <= torch.tensor(out_degrees)[:, None]
        self.register_buffer("mask", mask.to(self.weight.dtype), persistent=False)
        bound = scale / math.sqrt(max(1, len(in_degrees)))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"


class Rows:
    """Feature-major values (1 + units, N) that grow unit by unit; the first row is all ones.

    The ones multiply the bias, which then is a column of the weight: adding it separately would
    first have to copy it for every point.

    Without gradients the values live in a preallocated buffer that is written in place; with
    gradients (or when traced) every growth makes a new tensor, so that nothing autograd has saved
    is overwritten.

    Args:
        values: the buffer (1 + capacity, N), or an empty tensor (0, N).
        in_place: whether to write to the buffer.
    """

    def __init__(self, values: Tensor, in_place: bool) -> None:
        self.in_place = in_place
        self.values = values if in_place else values.new_ones(1, values.shape[1])
        self.count = 1
        if in_place:
            values[0].fill_(1.0)

    def append(self, values: Tensor) -> None:
        """Add units (k, N)."""
        if self.in_place:
            self.values.narrow(0, self.count, values.shape[0]).copy_(values)
        else:
            self.values = torch.cat((self.values, values))
        self.count += values.shape[0]

    def append_layer(
        self,
        weight: Tensor,
        inputs: Tensor,
        activation: Callable[..., Tensor],
        extra: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        """Add the units activation(weight @ inputs + extra) + skip."""
        if self.in_place:
            slot = self.values.narrow(0, self.count, weight.shape[0])
            torch.mm(weight, inputs, out=slot)
            if extra is not None:
                slot += extra
            activation(slot, inplace=True)
            if skip is not None:
                slot += skip
            self.count += weight.shape[0]
        else:
            values = torch.mm(weight, inputs)
            values = activation(values if extra is None else values + extra)
            self.append(values if skip is None else values + skip)


@dataclass
class MaskedMLPState:
    """The units computed so far and the layers that compute more of them.

    Attributes:
        batch_shape: shape of the points to be generated.
        units: the inputs in order of generation, then the hidden units layer by layer.
        weights: bias and weight (units, 1 + inputs) of every layer. The columns of the first one
            follow the order of generation.
        extra: what the context adds to the first layer (units, N), if there is a context.
        h: memory for the parameters (P, N) that is used again in every step; None with gradients.
    """

    batch_shape: tuple[int, ...]
    units: list[Rows]
    weights: list[Tensor]
    extra: Tensor | None
    h: Tensor | None


class MaskedMLP(Conditioner):
    r"""A multi-layer perceptron with masked weights (MADE).

    Every hidden unit has a degree k and may depend on the context and on the first k features in
    the order. A unit sees the units of the layer below whose degree is not larger than its own,
    and the parameters of the variable at step t see the units of degree <= t.

    The units of each layer are stored in order of their degree. The incremental step t then only
    has to compute the units of degree t, which are a contiguous slice, from a contiguous slice of
    the layer below: every weight is used once per generated point, so d steps together cost as
    much as one parallel pass. Points run along the fast axis of memory (feature-major), which
    keeps these small products efficient.

    Args:
        features: number of variables d.
        context: number of context features, 0 for none.
        n_params: number of parameters P per variable.
        hidden: sizes of the hidden layers.
        order: "natural", "reversed", "random", or the feature indices in order of generation.
        residual: add the input of a hidden layer to its output where the sizes agree.
        activation: "relu", "silu" or "elu".
        init_scale: factor on the initial weights of the output layer; small values start the
            flow close to its base distribution.
        seed: seed of the random order.

    References:
        MADE: Masked Autoencoder for Distribution Estimation (Germain et al., 2015),
        https://arxiv.org/abs/1502.03509

    Example:
        >>> conditioner = MaskedMLP(features=3, context=2, n_params=5, hidden=(16, 16))
        >>> conditioner(torch.zeros(7, 3), torch.zeros(7, 2)).shape
        torch.Size([7, 3, 5])
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        n_params: int = 2,
        hidden: Sequence[int] = (64, 64),
        order: str | Sequence[int] = "natural",
        residual: bool = False,
        activation: str = "silu",
        init_scale: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(features, context, n_params, resolve_order(order, features, seed))
        if any(size < 1 for size in hidden):
            raise ShapeError(f"hidden sizes must be positive, got {tuple(hidden)}.")
        self.activation = lookup(activation, ACTIVATIONS, "activation")
        self.residual = residual

        rank = {feature: t for t, feature in enumerate(self.order)}
        degrees = [[rank[f] + 1 for f in range(features)]]
        degrees += [hidden_degrees(size, features, context > 0) for size in hidden]
        degrees += [[rank[f] for f in range(features) for _ in range(n_params)]]
        scales = [1.0] * len(hidden) + [init_scale]
        self.layers = nn.ModuleList(
            MaskedLinear(below, above, scale)
            for (below, above), scale in zip(itertools.pairwise(degrees), scales, strict=True)
        )
        first = hidden[0] if hidden else features * n_params
        self.context_layer = nn.Linear(context, first, bias=False) if context else None
        # Equal sizes mean equal degrees, so that adding input and output leaks nothing.
        self._skips = [False] + [residual and a == b for a, b in itertools.pairwise(hidden)]
        # How many inputs, and how many units of each hidden layer, have a degree below k.
        self._below = [
            [sum(degree < k for degree in layer) for k in range(features + 1)]
            for layer in ([k + 1 for k in range(features)], *degrees[1:-1])
        ]

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        values = self.layers[0](x)
        if self.context_layer is not None and context is not None:
            values = values + self.context_layer(context)
        below = x
        for layer, skip in zip(self.layers[1:], self._skips, strict=False):
            active = self.activation(values)
            below = active + below if skip else active
            values = layer(below)
        h: Tensor = values.unflatten(-1, (self.features, self.n_params))
        return h

    def start(self, batch_shape: Sequence[int], context: Tensor | None = None) -> MaskedMLPState:
        layers = cast("list[MaskedLinear]", list(self.layers))
        first: Tensor = layers[0].weight
        if self.order != tuple(range(self.features)):
            first = first[:, list(self.order)]
        weights = [
            torch.cat((layer.bias.unsqueeze(-1), weight), 1)
            for layer, weight in zip(layers, [first, *(m.weight for m in layers[1:])], strict=True)
        ]
        extra = None
        if self.context_layer is not None and context is not None:
            rows, lead = flat_context(context, batch_shape)
            extra = spread(self.context_layer.weight @ rows.t(), lead, batch_shape)
        n = math.prod(batch_shape)
        in_place = not torch.is_grad_enabled() and not tracing()
        sizes = [self.features] + [weight.shape[0] for weight in weights[:-1]]
        if in_place:
            # One allocation for everything: several would be returned to the system and mapped
            # anew in every call, which takes longer than the products.
            memory = first.new_empty(sum(sizes) + len(sizes) + self.n_params, n)
            *parts, h = torch.split(memory, [*(size + 1 for size in sizes), self.n_params])
            units = [Rows(part, True) for part in parts]
            return MaskedMLPState(tuple(batch_shape), units, weights, extra, h)
        units = [Rows(first.new_empty(0, n), False) for _ in sizes]
        return MaskedMLPState(tuple(batch_shape), units, weights, extra, None)

    def step(
        self, state: MaskedMLPState, t: int, x_prev: Tensor | None
    ) -> tuple[Tensor, MaskedMLPState]:
        if x_prev is not None:
            state.units[0].append(x_prev.reshape(1, -1))
        inputs = state.units[0].values[: 1 + self._below[0][t + 1]]
        for depth, units in enumerate(state.units[1:]):
            start, stop = self._below[depth + 1][t : t + 2]
            if start < stop:
                units.append_layer(
                    state.weights[depth][start:stop, : inputs.shape[0]],
                    inputs,
                    self.activation,
                    state.extra[start:stop] if depth == 0 and state.extra is not None else None,
                    inputs[1 + start : 1 + stop] if self._skips[depth] else None,
                )
            inputs = units.values[: 1 + stop]
        start = self.order[t] * self.n_params
        weight = state.weights[-1][start : start + self.n_params, : inputs.shape[0]]
        h = torch.mm(weight, inputs, out=state.h)
        if state.extra is not None and len(state.units) == 1:
            h = h + state.extra[start : start + self.n_params]
        return to_batch(h, state.batch_shape), state

    def extra_repr(self) -> str:
        return super().extra_repr() + f", residual={self.residual}"


def hidden_degrees(units: int, features: int, has_context: bool) -> list[int]:
    """Spread the units of a hidden layer evenly over the useful degrees, in ascending order.

    Degree 0 means "sees the context only" and is useless without one; degree d is of no use to
    anybody. With a context at least a quarter of the units have degree 0, so that the first of
    many variables is still a flexible function of the context.

    Example:
        >>> hidden_degrees(6, features=4, has_context=False)
        [1, 1, 2, 2, 3, 3]
        >>> hidden_degrees(8, features=8, has_context=True)
        [0, 0, 1, 2, 3, 4, 5, 6]
    """
    if features == 1:
        return [0] * units
    zeros = max(units // features, units // 4, 1) if has_context else 0
    rest = units - zeros
    return [0] * zeros + [1 + k * (features - 1) // rest for k in range(rest)]
