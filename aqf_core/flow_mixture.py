r"""Mixtures of joint distributions: ensembles of flows, with exact density, CDF and quantile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints

from .errors import ShapeError
from .flow_distribution import FlowDistribution
from .joint import JointPredictive
from .mixtures import MixturePredictive, normalise_weights
from .normal import level_to_base
from .quantile_function import QuantileDistribution
from .validation import as_shape, broadcast_shapes, check_levels

__all__ = ["FlowMixture"]


class FlowMixture(JointPredictive):
    r"""The mixture \(p(x) = \sum_t w_t p_t(x)\) of the distributions of T flows.

    Its conditionals are mixtures again, weighted by how well every member has predicted the earlier
    variables:

    .. math::
        F(x_j | x_{<j}) = \sum_t w_t(x_{<j}) F_t(x_j | x_{<j}), \qquad
        w_t(x_{<j}) \propto w_t\, p_t(x_{<j})

    so the density, the Rosenblatt transform `cdf` and its inverse `icdf` are exact. Means and
    variances combine those of the members, see `FlowDistribution` for when these are exact.

    Args:
        members: T distributions of flows, with the same event shape and the same order of
            generation; their batch shapes broadcast. For Monte-Carlo dropout, one for each pass.
        weights: (T,) or (T, *batch_shape), non-negative; normalised to sum 1 over the first
            dimension. Equal weights when omitted.
        n_samples: number of samples behind marginal intervals where they are not exact.

    Example:
        >>> from aqf_core import AutoregressiveQuantileFlow
        >>> flows = [AutoregressiveQuantileFlow(features=2, context=3) for _ in range(4)]
        >>> context = torch.randn(5, 3)
        >>> ensemble = FlowMixture([flow(context) for flow in flows])
        >>> x = ensemble.sample((10,))
        >>> x.shape, ensemble.log_prob(x).shape
        (torch.Size([10, 5, 2]), torch.Size([10, 5]))
        >>> torch.allclose(ensemble.icdf(ensemble.cdf(x)), x, atol=1e-3)
        True
    """

    def __init__(
        self,
        members: Sequence[FlowDistribution],
        weights: Tensor | None = None,
        n_samples: int = 1000,
    ) -> None:
        if not members:
            raise ShapeError("a mixture needs at least one member, got an empty list.")
        first = members[0]
        for member in members:
            if member.event_shape != first.event_shape:
                raise ShapeError(
                    f"members of a mixture must share their event shape, got "
                    f"{tuple(first.event_shape)} and {tuple(member.event_shape)}."
                )
            if member.flow.conditioner.order != first.flow.conditioner.order:
                raise ShapeError(
                    "members of a mixture must generate their variables in the same order; build "
                    "their conditioners with one `order`."
                )
        shape = broadcast_shapes(*[member.batch_shape for member in members])
        self.members = [member.expand(shape) for member in members]
        self.weights = normalise_weights(weights, len(members), len(shape), first.flow.space.loc)
        # The logarithm of a weight 0 would have no gradient.
        self._log_weights = self.weights.clamp_min(torch.finfo(self.weights.dtype).tiny).log()
        super().__init__(shape, first.event_shape, first.flow.space.loc, n_samples)

    @property
    def support(self) -> constraints.Constraint:
        return self.members[0].support

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowMixture:
        """The same distribution over a larger batch, without copying."""
        members = [member.expand(batch_shape) for member in self.members]
        weights = self.weights
        if weights.dim() > 1:
            missing = len(members[0].batch_shape) - (weights.dim() - 1)
            weights = weights.reshape(len(members), *[1] * missing, *weights.shape[1:])
        return FlowMixture(members, weights, self.n_samples)

    def log_prob(self, value: Tensor) -> Tensor:
        """Exact log density, shape broadcast(value batch, batch_shape)."""
        each = torch.stack([member.log_prob(value) for member in self.members])
        return torch.logsumexp(self._spread(each.dim() - 1) + each, 0)

    def conditionals(self, value: Tensor) -> MixturePredictive:
        """The distribution of every variable given the earlier ones in `value`.

        Args:
            value: shape (..., *event_shape).

        Returns:
            Mixtures of batch shape (..., d), the event flattened.
        """
        value = self._broadcast(value).to(self._like.dtype)
        parts = [member.conditionals(value) for member in self.members]
        each = torch.stack([part.log_prob(self._flat(value)) for part in parts])
        order = torch.tensor(self._order, device=each.device)
        earlier = F.pad(each[..., order[:-1]].cumsum(-1), (1, 0))[..., order.argsort()]
        weights = torch.softmax(self._spread(each.dim() - 2).unsqueeze(-1) + earlier, 0)
        return MixturePredictive(parts, weights)

    def cdf(self, value: Tensor) -> Tensor:
        """The Rosenblatt transform F(x_j | x_<j), of the shape of the broadcast value."""
        value = self._broadcast(value).to(self._like.dtype)
        return self._event(self.conditionals(value).cdf(self._flat(value)))

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`, variable by variable: x_j = Q(u_j | x_<j)."""
        u = check_levels(self._broadcast(value).to(self._like.dtype))
        return self._from_base(level_to_base(u))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Differentiable samples, shape (*sample_shape, *batch_shape, *event_shape).

        They invert the mixture; `sample` picks members instead, which is faster.
        """
        shape = as_shape(sample_shape, "the sample shape")
        size = (*shape, *self.batch_shape, *self.event_shape)
        return self._from_base(torch.randn(size, dtype=self._like.dtype, device=self._like.device))

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples (*sample_shape, *batch_shape, *event_shape): from a member picked by its weight.

        As many samples are drawn from every member, and one of each T of them is kept.
        """
        shape = (*as_shape(sample_shape, "the sample shape"), *self.batch_shape)
        with torch.no_grad():
            draws = torch.stack([self._flat(m.sample(sample_shape)) for m in self.members])
            u = torch.rand(shape, dtype=draws.dtype, device=draws.device)
            cumulative = self._spread(len(shape)).exp().cumsum(0)
            pick = (u > cumulative).sum(0).clamp_max(len(self.members) - 1)
            picked = draws.gather(0, pick[None, ..., None].expand(1, *draws.shape[1:]))
        return self._event(picked.squeeze(0))

    def crps(self, value: Tensor, levels: int = 256) -> Tensor:
        """CRPS of every variable given the observed earlier ones, shape (..., *event_shape)."""
        value = self._broadcast(value).to(self._like.dtype)
        return self._event(self.conditionals(value).crps(self._flat(value), levels))

    @property
    def mean(self) -> Tensor:
        return self._average(torch.stack([member.mean for member in self.members]))

    @property
    def variance(self) -> Tensor:
        within, between = self.variance_parts()
        return within + between

    def variance_parts(self) -> tuple[Tensor, Tensor]:
        r"""Variance within and between members, each (*batch_shape, *event_shape).

        \(\sum_t w_t \sigma_t^2\) is what every member expects (aleatoric) and
        \(\sum_t w_t (\mu_t - \mu)^2\) what they disagree about (epistemic); they add up to
        `variance`.
        """
        means = torch.stack([member.mean for member in self.members])
        within = self._average(torch.stack([member.variance for member in self.members]))
        return within, self._average((means - self._average(means)).square())

    @property
    def _order(self) -> tuple[int, ...]:
        return self.members[0].flow.conditioner.order

    def _spread(self, dims: int) -> Tensor:
        """Log weights, broadcastable with (T, *lead, *batch_shape) of 1 + `dims` dimensions."""
        count, *batch = self._log_weights.shape
        return self._log_weights.reshape(count, *[1] * (dims - len(batch)), *batch)

    def _average(self, each: Tensor) -> Tensor:
        """The weighted mean of (T, *batch_shape, *event_shape) over members."""
        weights = self.weights.reshape(*self.weights.shape, *[1] * len(self.event_shape))
        return (weights * each).sum(0)

    def _marginals(self) -> MixturePredictive | None:
        parts = [member._marginals() for member in self.members]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return MixturePredictive(known, self.weights.unsqueeze(-1))

    def _from_base(self, z: Tensor) -> Tensor:
        """The x at z ~ N(0, I), variable by variable."""
        with self.members[0].flow._full_precision():
            return self._event(self._generate(self._flat(z)))

    def _generate(self, z: Tensor) -> Tensor:
        flows = [member.flow for member in self.members]
        states = [
            flow.conditioner.start(z.shape[:-1], flow._check_context(member.context))
            for flow, member in zip(flows, self.members, strict=True)
        ]
        seen: list[Tensor | None] = [None] * len(flows)
        log_weights = self._spread(z.dim() - 1)
        values = [z] * z.shape[-1]
        for t, j in enumerate(self._order):
            parts = []
            for k, flow in enumerate(flows):
                h, states[k] = flow.conditioner.step(states[k], t, seen[k])
                parts.append(QuantileDistribution(flow.transformer, h, flow.space.of(j)))
            x = MixturePredictive(parts, torch.softmax(log_weights, 0)).from_base(z[..., j])
            log_weights = log_weights + torch.stack([part.log_prob(x) for part in parts])
            for k, (flow, part) in enumerate(zip(flows, parts, strict=True)):
                seen[k] = flow._seen(part.space.to_model(x)[0])
            values[j] = x
        return torch.stack(values, -1)
