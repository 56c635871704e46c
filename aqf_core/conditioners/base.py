r"""What every conditioner is: a map from earlier variables and context to parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import ShapeError, UnknownNameError
from ..validation import check_context, check_features

__all__ = ["Conditioner", "resolve_order"]

ORDERS = ("natural", "reversed", "random")


def resolve_order(order: str | Sequence[int], features: int, seed: int = 0) -> tuple[int, ...]:
    """Turn the name of an ordering, or an explicit one, into a tuple of feature indices.

    Args:
        order: "natural", "reversed", "random" (a fixed permutation drawn from `seed`), or the
            feature indices in the order in which they are generated.
        features: number of features d.
        seed: seed of the random ordering.

    Returns:
        The feature generated at each step, a permutation of 0 ... d-1.

    Example:
        >>> resolve_order("reversed", 3)
        (2, 1, 0)
        >>> resolve_order([0, 0, 1], 3)
        Traceback (most recent call last):
        ...
        aqf_core.errors.ShapeError: order must be a permutation of 0 ... 2, got [0, 0, 1].
    """
    if isinstance(order, str):
        if order == "natural":
            return tuple(range(features))
        if order == "reversed":
            return tuple(reversed(range(features)))
        if order == "random":
            generator = torch.Generator().manual_seed(seed)
            return tuple(torch.randperm(features, generator=generator).tolist())
        raise UnknownNameError(
            f"unknown order {order!r}; choose from {', '.join(ORDERS)}, or give the feature "
            "indices in the order of generation."
        )
    indices = [int(i) for i in order]
    if sorted(indices) != list(range(features)):
        raise ShapeError(f"order must be a permutation of 0 ... {features - 1}, got {indices}.")
    return tuple(indices)


class Conditioner(nn.Module):
    r"""Computes the parameters h_j = c_j(x_<j, context) of every conditional distribution.

    "Earlier" refers to `order`: the variable generated at step t is feature `order[t]`, and its
    parameters depend only on the features `order[:t]` and on the context.

    There are two ways to evaluate the same function:

    - `forward` sees all features and returns all parameters in one parallel pass (training,
      densities);
    - `start` and `step` reveal one feature at a time (sampling). The steps share their work
      through a state, so that all of them together cost about one parallel pass.

    A subclass must implement `forward`. Unless it implements the steps as well, each of them costs
    a parallel pass.

    Attributes:
        features: number of variables d.
        context: number of context features, 0 for none.
        n_params: number of parameters P per variable.
        order: the feature generated at each step.
        independent: whether the parameters depend on the context alone.

    Example:
        >>> class Markov(Conditioner):  # every variable depends on the one before it
        ...     def __init__(self, features, n_params):
        ...         super().__init__(features, 0, n_params)
        ...         self.layer = nn.Linear(1, n_params)
        ...
        ...     def forward(self, x, context=None):
        ...         before = nn.functional.pad(x[..., :-1], (1, 0))
        ...         return self.layer(before.unsqueeze(-1))
        >>> conditioner, x = Markov(features=4, n_params=2), torch.randn(7, 4)
        >>> torch.allclose(conditioner.stepwise(x), conditioner(x))
        True
    """

    independent: ClassVar[bool] = False
    order_index: Tensor

    def __init__(
        self, features: int, context: int, n_params: int, order: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        for name, value, least in (("features", features, 1), ("context", context, 0)):
            if value < least:
                raise ShapeError(f"{name} must be at least {least}, got {value}.")
        if n_params < 1:
            raise ShapeError(f"n_params must be at least 1, got {n_params}.")
        self.features = features
        self.context = context
        self.n_params = n_params
        self.order = tuple(range(features)) if order is None else order
        # Saved with the weights, because they mean nothing under another ordering.
        self.register_buffer("order_index", torch.tensor(self.order))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Parameters of all variables in one pass.

        Args:
            x: observed features, shape (*B, d).
            context: shape (*B, context) up to broadcasting, or None.

        Returns:
            h of shape (*B, d, P); h[..., j, :] does not depend on x[..., j] or later features.
        """
        raise NotImplementedError

    def start(self, batch_shape: Sequence[int], context: Tensor | None = None) -> Any:
        """Begin an incremental evaluation.

        Args:
            batch_shape: shape *B of the points to be generated.
            context: shape (*C, context) where *C broadcasts to *B; work that depends on the
                context alone is done once per context, not once per point.

        Returns:
            The state to hand to the first `step`. A state must be used once and in order.
        """
        return tuple(batch_shape), context, ()

    def step(self, state: Any, t: int, x_prev: Tensor | None) -> tuple[Tensor, Any]:
        """Parameters of the variable generated at step t.

        Args:
            state: what `start` or the previous `step` returned.
            t: 0 ... d-1.
            x_prev: value of feature `order[t - 1]`, shape (*B); None when t = 0.

        Returns:
            h of shape (*B, P), possibly a transposed view of a (P, *B) tensor, and the new state.
            Without gradients the next step may overwrite h.
        """
        batch_shape, context, seen = state
        if x_prev is not None:
            seen = (*seen, x_prev)
        unseen = next(self.parameters(), torch.empty(0)).new_zeros(batch_shape)
        columns = [unseen] * self.features
        for feature, value in zip(self.order, seen, strict=False):
            columns[feature] = value
        h = self(torch.stack(columns, -1), context)
        return h[..., self.order[t], :], (batch_shape, context, seen)

    def stepwise(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The same as `forward`, computed with `start` and `step` on the observed features."""
        batch_shape = self.batch_shape(x, context)
        x = x.expand(*batch_shape, self.features)
        state = self.start(batch_shape, context)
        params = [x] * self.features
        for t, feature in enumerate(self.order):
            x_prev = x[..., self.order[t - 1]] if t else None
            h, state = self.step(state, t, x_prev)
            params[feature] = h.clone()
        return torch.stack(params, dim=-2)

    def batch_shape(self, x: Tensor, context: Tensor | None) -> torch.Size:
        """The batch shape of `x` (..., d) and `context` (..., c) after broadcasting."""
        if context is None:
            return x.shape[:-1]
        shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            x.shape[:-1], context.shape[:-1]
        )
        return torch.Size(shape)

    def check(self, x: Tensor, context: Tensor | None) -> None:
        """Raise a clear error when `x` or `context` does not fit this conditioner."""
        check_features(x, self.features)
        check_context(context, self.context, x.shape[:-1])

    def extra_repr(self) -> str:
        text = f"features={self.features}, context={self.context}, n_params={self.n_params}"
        if self.order != tuple(range(self.features)):
            shown = ", ".join(map(str, self.order[:8])) + (", ..." if self.features > 8 else "")
            text += f", order=({shown})"
        return text

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        saved = state_dict.get(prefix + "order_index")
        if saved is not None and tuple(saved.tolist()) != self.order:
            error_msgs.append(
                f"the saved weights belong to the feature order {saved.tolist()}, this conditioner "
                f"was built with {list(self.order)}; build it with the saved order."
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def flat_context(context: Tensor, batch_shape: Sequence[int]) -> tuple[Tensor, tuple[int, ...]]:
    """Split a context (*C, c) that broadcasts to a batch into rows and their batch shape.

    Returns:
        The rows (M, c) and the shape *C, padded with ones to the length of `batch_shape`.
    """
    lead = (1,) * (len(batch_shape) + 1 - context.dim()) + tuple(context.shape[:-1])
    return context.reshape(-1, context.shape[-1]), lead


def spread(rows: Tensor, lead: Sequence[int], batch_shape: Sequence[int]) -> Tensor:
    """Repeat feature-major values (F, M) of M contexts over the N points that use them: (F, N)."""
    units = rows.shape[0]
    if tuple(lead) == tuple(batch_shape):
        return rows
    return rows.reshape(units, *lead).expand(units, *batch_shape).reshape(units, -1)


def to_batch(rows: Tensor, batch_shape: Sequence[int]) -> Tensor:
    """View feature-major values (F, N) as (*B, F) without copying."""
    if len(batch_shape) == 1:
        return rows.t()
    return rows.reshape(rows.shape[0], *batch_shape).movedim(0, -1)
