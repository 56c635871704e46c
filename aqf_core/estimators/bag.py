"""A bag of networks that train side by side: every weight has a leading member dimension."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..conditioners.base import Conditioner
from ..conditioners.masked_mlp import ACTIVATIONS, hidden_degrees
from ..validation import lookup

__all__ = ["BagMLP", "GaussianChain"]


class _State(NamedTuple):
    """What an incremental evaluation knows: the variables and hidden units that are final."""

    first: Tensor  # what the first layer sees of the context (*C, K, B, units)
    skip: Tensor  # what the output sees of the context (*C, K, B, d P), or a zero
    seen: Tensor | None  # variables so far (*S, K, B, t)
    units: list[Tensor]  # of each hidden layer, (*S, K, B, count)


class BagMLP(Conditioner):
    r"""K multi-layer perceptrons with a linear skip, evaluated together by batched products.

    All shapes end in (K, B, .): member, row, feature. With several variables the weights are
    masked (MADE), so that the parameters of variable j see the context and x_<j only; with one
    they see the context alone.

    Args:
        members: number K of networks.
        features: number of variables d.
        context: number of context features.
        n_params: number of parameters P per variable.
        hidden: sizes of the hidden layers.
        activation: "relu", "silu" or "elu".
        dropout: share of units dropped after each hidden layer while training.
        skip: add a linear function of the inputs to the output.
        independent: whether the variables ignore each other even if there are several.
        init_scale: factor on the initial weights of the output layer.
        sees: which context features each member sees, (K, context) of booleans; None for all.

    Example:
        >>> bag = BagMLP(members=4, features=1, context=3, n_params=5)
        >>> bag(torch.zeros(4, 7, 1), torch.zeros(4, 7, 3)).shape
        torch.Size([4, 7, 1, 5])
    """

    weight0: Tensor
    bias0: Tensor
    skip_weight: Tensor
    seen: Tensor
    seen_skip: Tensor
    mask_context: Tensor | None

    def __init__(
        self,
        members: int,
        features: int,
        context: int,
        n_params: int,
        hidden: Sequence[int] = (64, 64),
        activation: str = "silu",
        dropout: Sequence[float] = (),
        skip: bool = True,
        independent: bool = False,
        init_scale: float = 0.1,
        sees: Tensor | None = None,
    ) -> None:
        super().__init__(features, context, n_params)
        self.members = members
        self.activation = lookup(activation, ACTIVATIONS, "activation")
        self.dropout = [*dropout, *[0.0] * len(hidden)][: len(hidden)]
        self.sees_variables = features > 1 and not independent
        outputs = features * n_params
        sizes = [context, *hidden, outputs]
        for layer, (a, b) in enumerate(itertools.pairwise(sizes)):
            factor = init_scale if layer == len(hidden) else 1.0
            self._add(f"weight{layer}", (a, b), factor / math.sqrt(max(1, a)))
            self._add(f"bias{layer}", (1, b), factor / math.sqrt(max(1, a)))
        self.depth = len(hidden)
        self.skip = skip
        if skip:
            self._add("skip_weight", (context, outputs), 0.0)
        # Stored with the weights, unlike the other masks: it says how they were trained.
        self.register_buffer("mask_context", None if sees is None else sees.float().unsqueeze(-1))
        if self.mask_context is not None:
            # Large at the start as if the other features did not exist.
            share = self.mask_context.mean(1, keepdim=True).clamp_min(1.0 / context)
            self.weight0.data /= share.sqrt()
        # How many units of each hidden layer are final before step t.
        self._below = [[0] + [size] * features for size in hidden]
        if self.sees_variables:
            self._add("seen", (features, sizes[1]), 1.0 / math.sqrt(features))
            self._add("seen_skip", (features, outputs), 0.0)
            self._add_masks(features, hidden)

    def _add(self, name: str, shape: tuple[int, int], bound: float) -> None:
        values = torch.empty(self.members, *shape).uniform_(-bound, bound)
        self.register_parameter(name, nn.Parameter(values))

    def _add_masks(self, features: int, hidden: Sequence[int]) -> None:
        degrees = [hidden_degrees(size, features, True) for size in hidden]
        self._below = [
            [sum(k < t for k in layer) for t in range(features + 1)] for layer in degrees
        ]
        inputs = [j + 1 for j in range(features)]
        outputs = [j for j in range(features) for _ in range(self.n_params)]
        stages = [inputs, *degrees, outputs]
        names = ["mask_seen", *(f"mask{k + 1}" for k in range(len(hidden)))]
        for name, (below, above) in zip(names, itertools.pairwise(stages), strict=True):
            self._mask(name, below, above)
        self._mask("mask_skip", inputs, outputs)

    def _mask(self, name: str, below: list[int], above: list[int]) -> None:
        mask = torch.tensor(below)[:, None] <= torch.tensor(above)[None, :]
        self.register_buffer(name, mask.float(), persistent=False)

    def _weight(self, name: str, mask: str) -> Tensor:
        weight: Tensor = getattr(self, name)
        masked: Tensor | None = getattr(self, mask, None)
        return weight if masked is None else weight * masked.to(weight.dtype)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        assert context is not None
        values, skip = self._inputs(context)
        if self.sees_variables:
            values = values + x @ self._weight("seen", "mask_seen")
            skip = skip + x @ self._weight("seen_skip", "mask_skip")
        for layer in range(1, self.depth + 1):
            values = self.activation(values)
            if self.training and self.dropout[layer - 1]:
                values = F.dropout(values, self.dropout[layer - 1])
            weight = self._weight(f"weight{layer}", f"mask{layer}")
            values = _affine(values, weight, getattr(self, f"bias{layer}"))
        h = values + skip
        return h.reshape(*h.shape[:-1], self.features, self.n_params)

    def _inputs(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer and the skip see of the context."""
        first = _affine(context, self._weight("weight0", "mask_context"), self.bias0)
        if not self.skip:
            return first, context.new_zeros(())
        return first, context @ self._weight("skip_weight", "mask_context")

    def start(self, batch_shape: Sequence[int], context: Tensor | None = None) -> _State:
        assert context is not None
        first, skip = self._inputs(context)
        return _State(first, skip, None, [first[..., :0] for _ in range(self.depth)])

    def step(self, state: _State, t: int, x_prev: Tensor | None) -> tuple[Tensor, _State]:
        """See `Conditioner.step`; units are sorted by degree, and each is computed once."""
        first, skip, seen, units = state
        if x_prev is not None and self.sees_variables:
            column = x_prev.unsqueeze(-1)
            seen = column if seen is None else torch.cat([seen, column], -1)
        own = slice(t * self.n_params, (t + 1) * self.n_params)
        stops = [slice(*counts[t : t + 2]) for counts in self._below] + [own]
        values = first[..., stops[0]]
        if seen is not None:
            values = values + seen @ self.seen[:, :t, stops[0]]
        units = list(units)
        for layer in range(1, self.depth + 1):
            units[layer - 1] = _join(units[layer - 1], self.activation(values))
            below, stop = units[layer - 1], stops[layer]
            weight = getattr(self, f"weight{layer}")[:, : below.shape[-1], stop]
            values = _affine(below, weight, getattr(self, f"bias{layer}")[..., stop])
        if skip.dim():
            values = values + skip[..., own]
        if seen is not None:
            values = values + seen @ self.seen_skip[:, :t, own]
        return values, _State(first, skip, seen, units)

    def select(self, k: int) -> BagMLP:
        """The bag that holds member k alone, sharing its memory."""
        alone = copy.copy(self)
        alone.members = 1
        alone._parameters = {
            name: nn.Parameter(p.detach()[k : k + 1], requires_grad=False)
            for name, p in self._parameters.items()
            if p is not None
        }
        if self.mask_context is not None:
            alone._buffers = self._buffers | {"mask_context": self.mask_context[k : k + 1]}
        return alone


class GaussianChain(Conditioner):
    r"""Conditionals of a multivariate Gaussian: \(x_j = \mu_j + \sum_{i<j} a_{ji} x_i + s_j z_j\).

    The means, the coefficients a and the scales s are functions of the context alone; together
    they are the Cholesky factor of the precision matrix (a Gaussian Markov random field).

    Args:
        members, features, context: as in `BagMLP`.
        **options: of the `BagMLP` that emits the numbers.
    """

    place: Tensor
    sees_variables = True

    def __init__(self, members: int, features: int, context: int, **options: Any) -> None:
        super().__init__(features, context, 2)
        pairs = features * (features - 1) // 2
        self.bag = BagMLP(members, 1, context, 2 * features + pairs, **options)
        row, column = torch.tril_indices(features, features, -1)
        self.register_buffer("place", row * features + column, persistent=False)

    @property
    def members(self) -> int:
        return self.bag.members

    def _numbers(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, raw scale) of shape (*S, d, 2) and coefficients (*S, d, d), lower triangular."""
        d = self.features
        out = self.bag(context, context).squeeze(-2)
        own, pairs = out[..., : 2 * d].reshape(*out.shape[:-1], d, 2), out[..., 2 * d :]
        matrix = out.new_zeros(*out.shape[:-1], d * d).index_copy(-1, self.place, pairs)
        return own, matrix.reshape(*out.shape[:-1], d, d)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        assert context is not None
        own, matrix = self._numbers(context)
        seen = (matrix @ x.unsqueeze(-1)).squeeze(-1)
        return torch.stack([own[..., 0] + seen, own[..., 1].expand_as(seen)], -1)

    def start(
        self, batch_shape: Sequence[int], context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        assert context is not None
        own, matrix = self._numbers(context)
        return own.expand(*batch_shape, *own.shape[-2:]), matrix

    def step(
        self, state: tuple[Tensor, Tensor], t: int, x_prev: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        own, matrix = state
        if x_prev is not None:
            pull = torch.zeros_like(own)
            pull[..., 0] = matrix[..., :, t - 1] * x_prev.unsqueeze(-1)
            own = own + pull
        return own[..., t, :], (own, matrix)

    def select(self, k: int) -> GaussianChain:
        """The chain of member k alone."""
        alone = copy.copy(self)
        alone._modules = {"bag": self.bag.select(k)}
        return alone


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight + bias of each member: (*S, K, B, in) -> (*S, K, B, out)."""
    if x.dim() == 3 and x.shape[0] == weight.shape[0]:
        return torch.baddbmm(bias, x, weight)
    return x @ weight + bias


def _join(old: Tensor, new: Tensor) -> Tensor:
    """Units (..., a) and (..., b), which may have more leading dimensions, side by side."""
    if not old.shape[-1]:
        return new
    return torch.cat([old.expand(*new.shape[:-1], old.shape[-1]), new], -1)
