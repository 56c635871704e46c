"""The predictive distribution of a set of boxes, possibly a mixture over MC-dropout passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from aqf_core.distributions import ScalarPredictive
from aqf_core.interpolation import InterpolatedPredictive
from aqf_core.losses import gaussian_crps
from aqf_core.mixtures import MixturePredictive
from aqf_core.normal import base_to_level, level_to_base, log_density
from aqf_core.transformers import Transformer

from .sides import Sides

#: Joint samples from which the marginals of an autoregressive flow are read.
MARGINAL_SAMPLES = 1024
#: Nodes of the quadrature behind standard deviations; its error is far below a pixel.
MOMENT_NODES = 41


@lru_cache(maxsize=8)
def base_points(count: int) -> Tensor:
    """Fixed points (count, 4) of N(0, I), spread evenly by a scrambled Sobol sequence.

    All boxes use the same points, so a box's samples depend neither on its neighbours nor on a
    seed.
    """
    points = torch.quasirandom.SobolEngine(4, scramble=True, seed=0).draw(count)
    # In no particular order: readers split samples into groups.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return level_to_base(points.clamp(1e-6, 1 - 1e-6))[order]


def moments(sides: ScalarPredictive) -> tuple[Tensor, Tensor]:
    """Mean and variance of every side from one evaluation of its map."""
    x, weight = sides._base_quadrature(MOMENT_NODES)
    mean = (weight * x).sum(0)
    return mean, (weight * (x - mean).square()).sum(0)


class StackedSides(ScalarPredictive):
    """Distributions of the sides of N boxes in each of T passes, batch shape (T, N, 4).

    Subclasses implement `from_base`, `to_base` and `base_and_log_prob`.
    """

    def _icdf(self, u: Tensor) -> Tensor:
        return self.from_base(level_to_base(u))

    def _cdf(self, x: Tensor) -> Tensor:
        return base_to_level(self.to_base(x))

    def _log_prob(self, x: Tensor) -> Tensor:
        return self.base_and_log_prob(x)[1]

    @property
    def is_gaussian(self) -> bool:
        """Whether :attr:`SidePredictive.sides` holds mean and standard deviation."""
        return False

    def select(self, index: Tensor) -> StackedSides:
        """The boxes at positions (M,) in every pass."""
        raise NotImplementedError

    def single(self) -> ScalarPredictive:
        """The only pass, batch shape (N, 4)."""
        raise NotImplementedError


class SidePredictive(StackedSides):
    """Distributions of box sides: a monotone map of N(0, 1) to residuals, then to pixels.

    Args:
        sides: Point boxes and scales of batch shape (..., 4).
        transformer: The flow's map, or None for the Gaussian itself.
        h: Its parameters (..., 4, P).
    """

    def __init__(
        self, sides: Sides, transformer: Transformer | None = None, h: Tensor | None = None
    ) -> None:
        self.sides, self.transformer, self.h = sides, transformer, h
        mean = sides.mean
        super().__init__(mean.shape, dtype=mean.dtype, device=mean.device)

    def from_base(self, z: Tensor) -> Tensor:
        """The coordinates at z."""
        if self.transformer is not None and self.h is not None:
            z = self.transformer.from_base(z, self.h)
        return self.sides.to_pixels(z)

    def to_base(self, x: Tensor) -> Tensor:
        """The z at which the map reaches the coordinates x."""
        z = self.sides.to_residual(x)
        if self.transformer is not None and self.h is not None:
            z = self.transformer.to_base(z, self.h)
        return z

    def base_and_log_prob(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`to_base(x)` and `log_prob(x)` in one evaluation."""
        z, log_slope = self.sides.to_residual_and_slope(x)
        if self.transformer is not None and self.h is not None:
            z, inner = self.transformer.to_base_and_slope(z, self.h)
            log_slope = log_slope + inner
        return z, log_density(z) + log_slope

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        if self.transformer is None and not self.sides.valid:
            return gaussian_crps(self.sides.mean, self.sides.sigma, x, reduction="none")
        return None

    @property
    def is_gaussian(self) -> bool:
        """Whether mean and standard deviation are the sides' own."""
        return self.transformer is None and not self.sides.valid

    def select(self, index: Tensor) -> SidePredictive:
        """The boxes at positions (M,) in every pass."""
        return self[:, index]

    def single(self) -> SidePredictive:
        """The only pass, batch shape (N, 4)."""
        return self[0]

    def __getitem__(self, index: object) -> SidePredictive:
        h = None if self.h is None else self.h[index]  # type: ignore[index]
        return SidePredictive(self.sides[index], self.transformer, h)


class BoxDistribution:
    """The joint distribution of N boxes, a mixture of T passes.

    Args:
        passes: T, and boxes: N.
        sampler: Maps points (S, 4) of N(0, I) and the pass of each, (S,), to boxes (S, N, 4).
        marginals: Side distributions of batch shape (T, N, 4); None when only samples know the
            marginals (autoregressive flows).
        like: A tensor of the right dtype and device.
        weights: (T, N), how much each pass counts for a box, with sum 1; equal when omitted.
    """

    def __init__(
        self,
        passes: int,
        boxes: int,
        sampler: Callable[[Tensor, Tensor], Tensor],
        marginals: StackedSides | None,
        like: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        self.passes, self.boxes, self.weights = passes, boxes, weights
        self.sampler, self.marginals, self.like = sampler, marginals, like

    @classmethod
    def independent(cls, marginals: SidePredictive) -> BoxDistribution:
        """Boxes whose sides are independent given the pass."""
        passes, boxes, _ = marginals.batch_shape

        def sampler(z: Tensor, which: Tensor) -> Tensor:
            picked = marginals[which]
            return picked.from_base(z[:, None].expand(picked.batch_shape))

        return cls(passes, boxes, sampler, marginals, marginals.sides.mean)

    @classmethod
    def gaussian(cls, mean: Tensor, sigma: Tensor) -> BoxDistribution:
        """The stage-1 Gaussian with mean and standard deviation (T, N, 4)."""
        return cls.independent(SidePredictive(Sides(mean, sigma)))

    def changed(
        self,
        boxes: int,
        sampler: Callable[[Tensor], Tensor],
        marginals: Callable[[StackedSides], StackedSides],
        weights: Tensor | None = None,
    ) -> BoxDistribution:
        """Other boxes that depend on these, pass by pass.

        Args:
            boxes: Their number M.
            sampler: Maps sampled boxes (S, N, 4) to samples (S, M, 4) of the others.
            marginals: Maps side distributions (T, N, 4) to those (T, M, 4) of the others.
            weights: (T, M), where passes have different weights.
        """
        old = self.sampler
        return BoxDistribution(
            self.passes,
            boxes,
            lambda z, which: sampler(old(z, which)),
            None if self.marginals is None else marginals(self.marginals),
            self.like,
            weights,
        )

    def select(self, index: Tensor) -> BoxDistribution:
        """The boxes at positions (M,), in that order."""
        return self.changed(
            len(index),
            lambda boxes: boxes[:, index],
            lambda sides: sides.select(index),
            None if self.weights is None else self.weights[:, index],
        )

    def marginal(self) -> ScalarPredictive:
        """The distribution of each side, batch shape (N, 4).

        Autoregressive flows have no closed marginals; theirs are read from samples.
        """
        if self.marginals is None:
            draws = self._draws.sort(1).values.movedim(1, -1)
            levels = (torch.arange(draws.shape[-1]).to(draws) + 0.5) / draws.shape[-1]
            return InterpolatedPredictive(levels, draws)
        if self.passes == 1:
            return self.marginals.single()
        if self.weights is None:
            return MixturePredictive(self.marginals)
        return MixturePredictive(self.marginals, self.weights[..., None].expand(-1, -1, 4))

    def quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles (N, K, 4) at levels (K,)."""
        if self.boxes == 0:
            return self.like.new_zeros((0, len(levels), 4))
        if self.marginals is not None:
            return self.marginal().quantiles(levels.to(self.like)).movedim(-1, 1)
        return torch.quantile(self._draws, levels.to(self._draws), dim=1).movedim(0, 1)

    def variance_parts(self) -> tuple[Tensor, Tensor]:
        """Variance within passes (aleatoric) and of their means (epistemic), each (N, 4)."""
        if self.boxes == 0:
            return self.like.new_zeros((0, 4)), self.like.new_zeros((0, 4))
        if self.marginals is None:
            draws = self._pass_draws()
            mean, variance = draws.mean(1).movedim(1, 0), draws.var(1).movedim(1, 0)
        elif isinstance(self.marginals, SidePredictive) and self.marginals.is_gaussian:
            mean, variance = self.marginals.sides.mean, self.marginals.sides.sigma.square()
        else:
            mean, variance = moments(self.marginals)
        if self.weights is None:
            return variance.mean(0), mean.var(0, correction=0)
        weights = self.weights[..., None]
        centre = (weights * mean).sum(0)
        return (weights * variance).sum(0), (weights * (mean - centre).square()).sum(0)

    @property
    def _draw_count(self) -> int:
        return max(2, MARGINAL_SAMPLES // self.passes) * self.passes

    @cached_property
    def _draws(self) -> Tensor:
        """The samples (N, S, 4) behind marginals, as many from each pass of equal weight."""
        return self.samples(self._draw_count)

    def _pass_draws(self) -> Tensor:
        """Samples (N, S / T, T, 4) of each pass."""
        if self.weights is None:
            return self._draws.unflatten(1, (-1, self.passes))
        z = base_points(self._draw_count // self.passes).to(self.like)
        return self._each_pass(z).permute(2, 1, 0, 3)

    def _each_pass(self, z: Tensor) -> Tensor:
        """Boxes (T, S, N, 4) of every pass at the same points (S, 4)."""
        return torch.stack(
            [self.sampler(z, torch.full((len(z),), t, device=z.device)) for t in range(self.passes)]
        )

    def samples(self, count: int) -> Tensor:
        """Joint samples (N, S, 4); each pass gives its share of them."""
        if self.boxes == 0:
            return self.like.new_zeros((0, count, 4))
        z = base_points(count).to(self.like)
        number = torch.arange(count, device=z.device)
        if self.weights is None:
            return self.sampler(z, number % self.passes).movedim(0, 1)
        share = (number.to(z) + 0.5) / count
        which = (share[:, None] > self.weights.cumsum(0)[:-1, None]).sum(0)  # (S, N)
        picked = self._each_pass(z).gather(0, which[None, ..., None].expand(1, -1, -1, 4))
        return picked[0].movedim(0, 1)
