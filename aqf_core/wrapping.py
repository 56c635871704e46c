"""The interface of this library for the distributions of torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, biject_to, constraints

from .distributions import GaussianPredictive, ScalarPredictive
from .errors import ShapeError
from .inversion import invert_monotone

__all__ = ["WrappedPredictive", "as_predictive"]


class WrappedPredictive(ScalarPredictive):
    """Any one-dimensional `torch.distributions` object with the interface of this library.

    Where torch has no quantile function (Gamma, mixtures), the CDF is inverted.

    Args:
        base: a distribution with event shape () that has `cdf` and `log_prob`.

    Example:
        >>> dist = WrappedPredictive(torch.distributions.Laplace(torch.zeros(2), torch.ones(2)))
        >>> dist.crps(torch.zeros(2))
        tensor([0.2500, 0.2500])
        >>> WrappedPredictive(torch.distributions.Gamma(torch.tensor(1.0), 1.0)).median
        tensor(0.6931)
    """

    def __init__(self, base: Distribution, validate_args: bool | None = None) -> None:
        if base.event_shape != torch.Size():
            raise ShapeError(
                f"only one-dimensional distributions can be wrapped, got event shape "
                f"{tuple(base.event_shape)}; those of a flow are its conditionals(x)."
            )
        if _is_discrete(base):
            raise TypeError(
                f"{type(base).__name__} is discrete; only continuous distributions can be wrapped."
            )
        self.base = base
        like = base.sample()
        super().__init__(
            base.batch_shape, dtype=like.dtype, device=like.device, validate_args=validate_args
        )

    @property
    def support(self) -> constraints.Constraint:
        return self.base.support or constraints.real

    def _icdf(self, u: Tensor) -> Tensor:
        # Quantile functions of torch work with 1 - u or 2 u - 1, which is 1 for smaller levels.
        u = u.clamp_min(torch.finfo(u.dtype).eps / 2)
        try:
            return self.base.icdf(u)
        except NotImplementedError:
            return self._inverted_cdf(u)

    def _inverted_cdf(self, u: Tensor) -> Tensor:
        """The quantile by root finding, on the real line that torch maps to the support."""
        # The support of torch's mixtures is that of their components in disguise.
        onto = biject_to(getattr(self.support, "base_constraint", self.support))

        def cdf_and_slope(y: Tensor) -> tuple[Tensor, Tensor]:
            x = onto(y)
            log_slope = self.base.log_prob(x) + onto.log_abs_det_jacobian(y, x)
            return self._cdf(x), log_slope.exp().clamp_min(torch.finfo(x.dtype).tiny)

        x: Tensor = onto(invert_monotone(cdf_and_slope, u))
        return x

    def _cdf(self, x: Tensor) -> Tensor:
        try:
            return self.base.cdf(x)
        except NotImplementedError:
            raise NotImplementedError(
                f"torch has no cdf of {type(self.base).__name__}; make a table of its quantiles "
                "and take InterpolatedPredictive."
            ) from None

    def _log_prob(self, x: Tensor) -> Tensor:
        return self.base.log_prob(x)

    @property
    def mean(self) -> Tensor:
        return self.base.mean.expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        return self.base.variance.expand(self.batch_shape)

    def __repr__(self) -> str:
        return f"WrappedPredictive({self.base})"


def _is_discrete(dist: Distribution) -> bool:
    try:
        return dist.support is not None and bool(dist.support.is_discrete)
    except NotImplementedError:  # distributions need not state their support
        return False


def as_predictive(dist: Distribution) -> ScalarPredictive:
    """Return `dist` itself when it is a `ScalarPredictive`, and its equivalent otherwise.

    Example:
        >>> as_predictive(Normal(0.0, 1.0)).median
        tensor(0.)
    """
    if isinstance(dist, ScalarPredictive):
        return dist
    if not isinstance(dist, Distribution):
        raise TypeError(f"a torch.distributions.Distribution is needed, got {type(dist).__name__}.")
    if isinstance(dist, Normal):
        return GaussianPredictive(dist.loc, dist.scale)
    return WrappedPredictive(dist)
