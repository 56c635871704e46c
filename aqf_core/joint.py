r"""The common interface of predictive distributions of several variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .distributions import ScalarPredictive
from .errors import ShapeError
from .losses import energy_score
from .validation import broadcast_shapes, check_levels, check_tensor

__all__ = ["JointPredictive"]


class JointPredictive(Distribution):
    r"""A batch of joint distributions of the d variables in an event.

    Subclasses implement `rsample`, `log_prob`, `cdf`, `icdf` and `conditionals`, and `_marginals`
    if they know the distribution of every variable by itself. Where they do not, moments and
    intervals come from `n_samples` samples, drawn once per object.

    Args:
        batch_shape: shape of the batch.
        event_shape: shape of an event, (d,) or for example (C, H, W).
        like: a tensor of the dtype and on the device of the values.
        n_samples: number of samples behind marginal moments and intervals.

    Example:
        >>> from aqf_core import AutoregressiveQuantileFlow
        >>> isinstance(AutoregressiveQuantileFlow(2)(), JointPredictive)
        True
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(
        self,
        batch_shape: Sequence[int],
        event_shape: Sequence[int],
        like: Tensor,
        n_samples: int = 1000,
    ) -> None:
        self.n_samples = n_samples
        self._like = like
        self._draws: Tensor | None = None
        super().__init__(torch.Size(batch_shape), torch.Size(event_shape), validate_args=False)

    def conditionals(self, value: Tensor) -> ScalarPredictive:
        """The distribution of every variable given the earlier ones in `value`.

        Args:
            value: shape (..., *event_shape).

        Returns:
            One-dimensional distributions of batch shape (..., d), the event flattened.
        """
        raise NotImplementedError

    def _marginals(self) -> ScalarPredictive | None:
        """The distribution of every variable, batch shape (*batch_shape, d), where it is known."""
        return None

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples without gradients, shape (*sample_shape, *batch_shape, *event_shape)."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def quantile(self, value: Tensor) -> Tensor:
        """Another name of `icdf`."""
        return self.icdf(value)

    def energy_score(self, value: Tensor, samples: int = 256) -> Tensor:
        """Fair energy score of joint samples in data units, shape (...)."""
        value = self._broadcast(value)
        dims = len(self.event_shape)
        lead = value.shape[: value.dim() - dims - len(self.batch_shape)]
        draws = self.rsample((samples, *lead))
        return energy_score(self._flat(draws), self._flat(value), reduction="none")

    def interval(self, coverage: float | Tensor) -> tuple[Tensor, Tensor]:
        """Central interval of every variable's marginal that holds `coverage` of it: (low, high).

        Both have shape (*batch_shape, *event_shape). See the class for when they are exact.
        """
        c = torch.as_tensor(coverage, dtype=self._like.dtype, device=self._like.device)
        check_levels(c, "coverage")
        if c.dim() > 0:
            raise ShapeError(f"coverage must be one number, got shape {tuple(c.shape)}.")
        marginals = self._marginals()
        if marginals is not None:
            low, high = marginals.interval(c)
            return self._event(low), self._event(high)
        levels = torch.stack([(1.0 - c) / 2.0, (1.0 + c) / 2.0])
        samples = self._samples().flatten(1)
        # torch.quantile rejects an empty batch.
        values = torch.quantile(samples, levels, dim=0) if samples.numel() else samples[:2]
        values = values.reshape(2, *self.batch_shape, *self.event_shape)
        return values[0], values[1]

    @property
    def mean(self) -> Tensor:
        """Mean of every variable, shape (*batch_shape, *event_shape)."""
        marginals = self._marginals()
        return self._samples().mean(0) if marginals is None else self._event(marginals.mean)

    @property
    def variance(self) -> Tensor:
        """Variance of every variable, shape (*batch_shape, *event_shape)."""
        marginals = self._marginals()
        if marginals is not None:
            return self._event(marginals.variance)
        samples = self._samples()
        return samples.var(0) if samples.numel() else samples.sum(0)  # var warns if empty

    def __repr__(self) -> str:
        batch, event = tuple(self.batch_shape), tuple(self.event_shape)
        return f"{type(self).__name__}(batch_shape={batch}, event_shape={event})"

    def _samples(self) -> Tensor:
        if self._draws is None:
            self._draws = self.sample((self.n_samples,))
        return self._draws

    def _flat(self, value: Tensor) -> Tensor:
        """(..., *event_shape) as (..., d)."""
        return value.flatten(-len(self.event_shape))

    def _event(self, value: Tensor) -> Tensor:
        """Undo `_flat`."""
        return value.reshape(*value.shape[:-1], *self.event_shape)

    def _broadcast(self, value: Tensor) -> Tensor:
        """Expand the batch dimensions of a value (..., *event_shape) against the batch shape."""
        dims = len(self.event_shape)
        check_tensor(value, "a value")
        if value.dim() < dims or value.shape[value.dim() - dims :] != self.event_shape:
            wanted = ", ".join(map(str, self.event_shape))
            raise ShapeError(f"a value must have shape (..., {wanted}), got {tuple(value.shape)}.")
        try:
            shape = broadcast_shapes(value.shape[: value.dim() - dims], self.batch_shape)
        except ShapeError:
            raise ShapeError(
                f"a value of shape {tuple(value.shape)} does not broadcast with batch shape "
                f"{tuple(self.batch_shape)}."
            ) from None
        return value.expand(*shape, *self.event_shape)
