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


class SidePredictive(ScalarPredictive):
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

    def _icdf(self, u: Tensor) -> Tensor:
        return self.from_base(level_to_base(u))

    def _cdf(self, x: Tensor) -> Tensor:
        return base_to_level(self.to_base(x))

    def base_and_log_prob(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`to_base(x)` and `log_prob(x)` in one evaluation."""
        z, log_slope = self.sides.to_residual_and_slope(x)
        if self.transformer is not None and self.h is not None:
            z, inner = self.transformer.to_base_and_slope(z, self.h)
            log_slope = log_slope + inner
        return z, log_density(z) + log_slope

    def _log_prob(self, x: Tensor) -> Tensor:
        return self.base_and_log_prob(x)[1]

    def _exact_crps(self, x: Tensor) -> Tensor | None:
        if self.transformer is None and not self.sides.valid:
            return gaussian_crps(self.sides.mean, self.sides.sigma, x, reduction="none")
        return None

    @property
    def is_gaussian(self) -> bool:
        """Whether mean and standard deviation are the sides' own."""
        return self.transformer is None and not self.sides.valid

    def __getitem__(self, index: object) -> SidePredictive:
        h = None if self.h is None else self.h[index]  # type: ignore[index]
        return SidePredictive(self.sides[index], self.transformer, h)


class BoxDistribution:
    """The joint distribution of N boxes, an equal mixture of T passes.

    Args:
        passes: T, and boxes: N.
        sampler: Maps points (S, 4) of N(0, I) and the pass of each, (S,), to boxes (S, N, 4).
        marginals: Side distributions of batch shape (T, N, 4); None when only samples know the
            marginals (autoregressive flows).
        like: A tensor of the right dtype and device.
    """

    def __init__(
        self,
        passes: int,
        boxes: int,
        sampler: Callable[[Tensor, Tensor], Tensor],
        marginals: SidePredictive | None,
        like: Tensor,
    ) -> None:
        self.passes, self.boxes = passes, boxes
        self._sampler, self._marginals, self._like = sampler, marginals, like

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

    def select(self, index: Tensor) -> BoxDistribution:
        """The boxes at positions (M,), in that order."""
        sampler, marginals = self._sampler, self._marginals
        return BoxDistribution(
            self.passes,
            len(index),
            lambda z, which: sampler(z, which)[:, index],
            None if marginals is None else marginals[:, index],
            self._like,
        )

    def marginal(self) -> ScalarPredictive:
        """The distribution of each side, batch shape (N, 4).

        Autoregressive flows have no closed marginals; theirs are read from samples.
        """
        if self._marginals is None:
            draws = self._draws.sort(1).values.movedim(1, -1)
            levels = (torch.arange(draws.shape[-1]).to(draws) + 0.5) / draws.shape[-1]
            return InterpolatedPredictive(levels, draws)
        if self.passes == 1:
            return self._marginals[0]
        return MixturePredictive(self._marginals)

    def quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles (N, K, 4) at levels (K,)."""
        if self.boxes == 0:
            return self._like.new_zeros((0, len(levels), 4))
        if self._marginals is not None:
            return self.marginal().quantiles(levels.to(self._like)).movedim(-1, 1)
        return torch.quantile(self._draws, levels.to(self._draws), dim=1).movedim(0, 1)

    def variance_parts(self) -> tuple[Tensor, Tensor]:
        """Variance within passes (aleatoric) and of their means (epistemic), each (N, 4)."""
        if self.boxes == 0:
            return self._like.new_zeros((0, 4)), self._like.new_zeros((0, 4))
        if self._marginals is None:
            groups = self._draws.unflatten(1, (-1, self.passes))
            mean, variance = groups.mean(1).movedim(1, 0), groups.var(1).movedim(1, 0)
        elif self._marginals.is_gaussian:
            mean, variance = self._marginals.sides.mean, self._marginals.sides.sigma.square()
        else:
            mean, variance = moments(self._marginals)
        return variance.mean(0), mean.var(0, correction=0)

    @cached_property
    def _draws(self) -> Tensor:
        """The samples (N, S, 4) behind marginals, as many from each pass."""
        return self.samples(max(2, MARGINAL_SAMPLES // self.passes) * self.passes)

    def samples(self, count: int) -> Tensor:
        """Joint samples (N, S, 4); sample s comes from pass s modulo T."""
        if self.boxes == 0:
            return self._like.new_zeros((0, count, 4))
        z = base_points(count).to(self._like)
        which = torch.arange(count, device=z.device) % self.passes
        return self._sampler(z, which).movedim(0, 1)
