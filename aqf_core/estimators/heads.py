"""What a network's output means: the one object in which the estimators differ.

A head says how many numbers per target it needs, how they are scored against an observation, and
which distribution they describe. Shapes: numbers h (..., P), observations y (...), and the last
dimension of y runs over the targets when there are several.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..distributions import GaussianPredictive, ScalarPredictive
from ..interpolation import InterpolatedPredictive
from ..levels import LevelStrategy
from ..losses import pinball_loss
from ..metrics import percent_levels
from ..mixtures import MixturePredictive
from ..normal import log_density
from ..objectives import conditional_loss
from ..quantile_function import QuantileDistribution
from ..spaces import OutputSpace
from ..transformers import Direction, make_transformer
from ..transformers.base import LOG_SCALE_LIMIT, bounded
from ..validation import lookup
from .counts import PoissonPredictive
from .pooling import PooledPredictive

__all__ = ["ClassHead", "FlowHead", "Head", "MixtureDensityHead", "PoissonHead", "QuantileGridHead"]


class Head(nn.Module):
    """Scores and interprets the outputs of a network.

    Attributes:
        n_params: numbers P per target.
        counts: whether targets are counts, taken as they are instead of standardised.
        smooth: whether densities are.
    """

    n_params: int
    counts = False
    smooth = True

    def start(self, y: Tensor) -> None:
        """Look at the training targets (n,) or (n, d) before the first step."""

    def loss(self, h: Tensor, y: Tensor, space: OutputSpace, exact: bool = False) -> Tensor:
        """One loss per observation, of the shape of y; `exact` asks for a loss without noise."""
        raise NotImplementedError

    def distribution(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        """Distributions of batch shape h.shape[:-1]."""
        raise NotImplementedError

    def pooled(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        """The mixture over the members, the first dimension of h."""
        if h.shape[0] == 1:
            return self.distribution(h[0], space)
        return PooledPredictive(MixturePredictive(self.distribution(h, space)), self.smooth)


class FlowHead(Head):
    """A transformer: the quantile flow itself, and with `transformer="affine"` the Gaussian.

    Args:
        transformer: name of a family of monotone maps.
        direction: "quantile" or "cdf".
        objective: "quantile", "crps" or "nll".
        levels: levels per observation and step where the loss has no closed form.
        scheme: how these levels are drawn, see `LevelStrategy`.
        options: further arguments of the transformer.

    Example:
        >>> head = FlowHead()
        >>> head.loss(torch.zeros(5, head.n_params), torch.zeros(5), OutputSpace()).shape
        torch.Size([5])
    """

    def __init__(
        self,
        transformer: str = "spline",
        direction: Direction = "quantile",
        objective: str = "crps",
        levels: int = 16,
        scheme: str = "lattice",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.transformer = make_transformer(transformer, direction=direction, **(options or {}))
        self.n_params = self.transformer.n_params
        self.objective = objective
        self.levels = LevelStrategy(scheme, levels)
        self.exact_levels = LevelStrategy("fixed", max(32, levels))

    def loss(self, h: Tensor, y: Tensor, space: OutputSpace, exact: bool = False) -> Tensor:
        levels = self.exact_levels if exact else self.levels
        return conditional_loss(self.transformer, space, y, h, self.objective, levels)

    def distribution(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        return QuantileDistribution(self.transformer, h, space)


class MixtureDensityHead(Head):
    r"""A mixture of C Gaussians by maximum likelihood (mixture density network).

    Args:
        components: number C of Gaussians.
    """

    def __init__(self, components: int = 5) -> None:
        super().__init__()
        self.components = components
        self.n_params = 3 * components

    def _parts(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, means and log scales, (..., C) each."""
        weight, loc, scale = h.reshape(*h.shape[:-1], 3, self.components).unbind(-2)
        # Equal components would stay equal: they start side by side.
        spread = torch.linspace(-1.0, 1.0, self.components, dtype=h.dtype, device=h.device)
        return weight.log_softmax(-1), loc + spread, bounded(scale, LOG_SCALE_LIMIT)

    def loss(self, h: Tensor, y: Tensor, space: OutputSpace, exact: bool = False) -> Tensor:
        weight, loc, log_scale = self._parts(h)
        model, log_slope = space.to_model(y)
        z = (model.unsqueeze(-1) - loc) * (-log_scale).exp()
        return -torch.logsumexp(weight + log_density(z) - log_scale, -1) - log_slope

    def distribution(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        return self._mixture([part.movedim(-1, 0) for part in self._parts(h)], space)

    def pooled(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        # A mixture of mixtures is one mixture: the members join the components.
        return self._mixture([part.movedim(-1, 0).flatten(0, 1) for part in self._parts(h)], space)

    def _mixture(self, parts: list[Tensor], space: OutputSpace) -> ScalarPredictive:
        """The mixture over the first dimension."""
        log_weight, loc, log_scale = parts
        scale = log_scale.exp() * space.scale.to(loc.dtype)
        components = GaussianPredictive(space.to_data(loc), scale)
        return PooledPredictive(MixturePredictive(components, log_weight.exp()))


class QuantileGridHead(Head):
    """One output per level, each with its own pinball loss (QRO); sorted when asked.

    Args:
        levels: number of levels k / (levels + 1).
    """

    smooth = False
    levels: Tensor
    start_at: Tensor

    def __init__(self, levels: int = 99) -> None:
        super().__init__()
        self.n_params = levels
        u = percent_levels() if levels == 99 else torch.arange(1, levels + 1) / (levels + 1)
        self.register_buffer("levels", u.float(), persistent=False)
        self.register_buffer("start_at", torch.special.ndtri(u.double()).float(), persistent=False)

    def loss(self, h: Tensor, y: Tensor, space: OutputSpace, exact: bool = False) -> Tensor:
        model = space.to_model(y)[0].unsqueeze(-1)
        quantile = h + self.start_at.to(h.dtype)
        return 2.0 * pinball_loss(quantile, model, self.levels.to(h.dtype), "none").mean(-1)

    def distribution(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        quantile = (h + self.start_at.to(h.dtype)).sort(-1).values
        data = space.to_data(quantile.movedim(-1, 0)).movedim(0, -1)
        return InterpolatedPredictive(self.levels.to(h.dtype), data)


class PoissonHead(Head):
    """The logarithm of a Poisson rate, by maximum likelihood."""

    counts = True
    base: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.n_params = 1
        self.register_buffer("base", torch.zeros(()))

    def start(self, y: Tensor) -> None:
        self.base = y.mean(0).clamp_min(1e-3).log().to(self.base.device)

    def _log_rate(self, h: Tensor) -> Tensor:
        return self.base.to(h.dtype) + bounded(h.squeeze(-1), LOG_SCALE_LIMIT)

    def loss(self, h: Tensor, y: Tensor, space: OutputSpace, exact: bool = False) -> Tensor:
        log_rate = self._log_rate(h)
        return log_rate.exp() - y * log_rate + torch.lgamma(y + 1.0)

    def distribution(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        return PoissonPredictive(self._log_rate(h).exp().unsqueeze(0))

    def pooled(self, h: Tensor, space: OutputSpace) -> ScalarPredictive:
        return PoissonPredictive(self._log_rate(h).exp())


class ClassHead(Head):
    r"""Ordered classes 0 ... C-1 through the CDF of a flow, evaluated between the classes.

    With thresholds between neighbouring classes, P(Y <= k) = F(t_k). The CRPS of this step
    function is the ranked probability score, for two classes the Brier score:

    .. math:: \sum_k (F(t_k) - 1[y \le k])^2

    Args:
        classes: number C of classes, at least 2.
        transformer: name of a family of monotone maps.
        objective: "crps", or "nll" for the logarithm of the probability of the class.
    """

    counts = True  # labels are not standardised, and steps cannot be recalibrated
    thresholds: Tensor

    def __init__(self, classes: int, transformer: str = "spline", objective: str = "crps") -> None:
        super().__init__()
        self.transformer = make_transformer(transformer, direction="cdf")
        self.n_params = self.transformer.n_params
        self.objective = lookup(objective, {"crps": "crps", "nll": "nll"}, "objective")
        middle = torch.arange(classes - 1) - 0.5 * (classes - 2)
        # Zero parameters are N(0, 1): the thresholds share its range.
        self.register_buffer("thresholds", middle * min(1.0, 3.0 / classes), persistent=False)

    def at_most(self, h: Tensor) -> Tensor:
        """P(Y <= k) for k = 0 ... C-2: shape (..., C-1)."""
        return self.transformer.cdf(self.thresholds.to(h.dtype), h.unsqueeze(-2))

    def probabilities(self, h: Tensor) -> Tensor:
        """Probabilities of the classes (..., C)."""
        at_most = self.at_most(h)
        zero = torch.zeros_like(at_most[..., :1])
        return torch.cat([zero, at_most, zero + 1.0], -1).diff(dim=-1).clamp_min(0.0)

    def loss(self, h: Tensor, y: Tensor, space: OutputSpace, exact: bool = False) -> Tensor:
        if self.objective == "nll":
            tiny = torch.finfo(h.dtype).eps
            own = self.probabilities(h).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
            return -own.clamp_min(tiny).log()
        k = torch.arange(len(self.thresholds), device=y.device)
        reached = (y.unsqueeze(-1) <= k).to(h.dtype)
        return (self.at_most(h) - reached).square().sum(-1)
