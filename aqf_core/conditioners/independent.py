r"""Parameters from the context alone: variables are independent given the context."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from ..validation import lookup
from .base import Conditioner
from .masked_mlp import ACTIVATIONS

__all__ = ["Independent"]


class Independent(Conditioner):
    """A plain multi-layer perceptron of the context; without context, free parameters.

    Args:
        features: number of variables d.
        context: number of context features, 0 for none.
        n_params: number of parameters P per variable.
        hidden: sizes of the hidden layers (unused without context).
        activation: "relu", "silu" or "elu".
        init_scale: factor on the initial weights of the output layer.

    Example:
        >>> conditioner = Independent(features=3, context=2, n_params=5)
        >>> conditioner(torch.zeros(7, 3), torch.zeros(2)).shape
        torch.Size([7, 3, 5])
    """

    independent = True

    def __init__(
        self,
        features: int,
        context: int = 0,
        n_params: int = 2,
        hidden: Sequence[int] = (64, 64),
        activation: str = "silu",
        init_scale: float = 0.1,
    ) -> None:
        super().__init__(features, context, n_params)
        self.activation = lookup(activation, ACTIVATIONS, "activation")
        if any(size < 1 for size in hidden):
            raise ShapeError(f"hidden sizes must be positive, got {tuple(hidden)}.")
        sizes = (context, *hidden) if context else ()
        self.layers = nn.ModuleList(
            nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        )
        outputs = features * n_params
        self.bias = nn.Parameter(torch.zeros(outputs))
        if context:
            bound = init_scale / math.sqrt(sizes[-1])
            self.weight = nn.Parameter(torch.empty(outputs, sizes[-1]).uniform_(-bound, bound))
        else:
            self.register_parameter("weight", None)

    def parameters_of(self, context: Tensor | None) -> Tensor:
        """h of shape (*C, d, P) for a context (*C, c); (d, P) without context."""
        h: Tensor = self.bias
        if self.weight is not None and context is not None:
            for layer in self.layers:
                context = self.activation(layer(context))
            h = F.linear(context, self.weight, self.bias)
        return h.reshape(*h.shape[:-1], self.features, self.n_params)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        h = self.parameters_of(context)
        return h.expand(*self.batch_shape(x, context), self.features, self.n_params)

    def start(self, batch_shape: Sequence[int], context: Tensor | None = None) -> Tensor:
        h = self.parameters_of(context)
        return h.expand(*batch_shape, self.features, self.n_params)

    def step(self, state: Tensor, t: int, x_prev: Tensor | None) -> tuple[Tensor, Tensor]:
        return state[..., t, :], state
