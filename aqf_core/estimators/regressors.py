"""The regressors: the quantile flow, and rivals that differ from it by their head alone."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning

from ..spaces import Support
from .heads import FlowHead, Head, MixtureDensityHead, PoissonHead, QuantileGridHead
from .presets import Settings
from .regressor import DistributionRegressor

__all__ = [
    "CDFFlowRegressor",
    "GaussianMRFRegressor",
    "GaussianRegressor",
    "MixtureDensityRegressor",
    "MultivariateQuantileRegressor",
    "PoissonRegressor",
    "QuantileFlowRegressor",
    "QuantileGridRegressor",
]


class QuantileFlowRegressor(DistributionRegressor):
    """Predicts whole distributions by quantile flows; with several targets, joint ones.

    Without an assumption about the noise, every quantile comes from one monotone function, so
    quantiles never cross. The default is a bag of ten networks trained side by side, whose
    mixture is recalibrated on rows that the members did not learn from.

    Args:
        preset: "default", "fast" (one network) or "paper" (the published recipe).
        transformer: family of monotone functions, a name in `aqf_core.TRANSFORMERS`.
        levels: quantile levels per row and step; None: as the preset says.
        support: bounds (low, high) of the target, None for an open side, for example (0, None);
            "auto": (0, None) if all targets are positive and some are close to zero; None: none.
        **common: further arguments, see `BagEstimator`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 6, (300, 1))
        >>> y = np.sin(X[:, 0]) + X[:, 0] / 6 * rng.exponential(size=300)
        >>> model = QuantileFlowRegressor("fast", steps=200, random_state=0).fit(X, y)
        >>> low, median, high = model.predict_quantiles([[3.0]], [0.05, 0.5, 0.95])[0]
        >>> bool(low < median < high)
        True
        >>> model.predict_interval(X, coverage=0.9).shape, model.sample(X, 1000).shape
        ((300, 2), (300, 1000))
    """

    _dependence = "flow"
    _direction = "quantile"

    def __init__(
        self,
        preset: str = "default",
        *,
        transformer: str = "spline",
        levels: int | None = None,
        support: Support | str | None = "auto",
        **common: Any,
    ) -> None:
        super().__init__(preset, **common)
        self.transformer = transformer
        self.levels = levels
        self.support = support

    def _make_head(self, settings: Settings) -> Head:
        direction: Any = self._direction
        return FlowHead(
            self.transformer,
            direction=direction,
            levels=settings.levels,
            scheme=settings.scheme,
        )

    def _bounds(self) -> Support | str | None:
        return self.support


class CDFFlowRegressor(QuantileFlowRegressor):
    """The same in the other direction: models the CDF and trains by the CRPS.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 60).reshape(-1, 1)
        >>> model = CDFFlowRegressor("fast", steps=20, random_state=0).fit(X, X[:, 0])
        >>> model.predict_cdf(X, 0.5).shape
        (60,)
    """

    _direction = "cdf"

    def _settings(self, table: tuple[int, int]) -> Settings:
        settings = super()._settings(table)
        if self.preset == "paper" and self.learning_rate is None:
            return replace(settings, learning_rate=3e-4)  # the published rate of this direction
        return settings


class GaussianRegressor(DistributionRegressor):
    """The same network with a Gaussian head, trained by likelihood; targets are independent.

    Args:
        objective: "nll", or "crps" for the closed-form CRPS.
        **common: further arguments, see `BagEstimator`.
    """

    def __init__(self, preset: str = "default", *, objective: str = "nll", **common: Any) -> None:
        super().__init__(preset, **common)
        self.objective = objective

    def _make_head(self, settings: Settings) -> Head:
        return FlowHead("affine", objective=self.objective)


class GaussianMRFRegressor(GaussianRegressor):
    """A multivariate Gaussian with full covariance, trained by likelihood.

    Means and the Cholesky factor of the precision matrix are functions of the features.
    """

    _dependence = "gaussian"


class MultivariateQuantileRegressor(GaussianMRFRegressor):
    """The multivariate Gaussian, trained by the quantile loss of its conditionals instead."""

    def __init__(
        self, preset: str = "default", *, objective: str = "quantile", **common: Any
    ) -> None:
        super().__init__(preset, objective=objective, **common)


class MixtureDensityRegressor(DistributionRegressor):
    """The same network with a mixture of Gaussians as its head, trained by likelihood.

    Args:
        components: number of Gaussians.
        **common: further arguments, see `BagEstimator`.
    """

    def __init__(self, preset: str = "default", *, components: int = 5, **common: Any) -> None:
        super().__init__(preset, **common)
        self.components = components

    def _make_head(self, settings: Settings) -> Head:
        return MixtureDensityHead(self.components)


class QuantileGridRegressor(DistributionRegressor):
    """The same network with one output per level (QRO); crossing quantiles are sorted.

    Args:
        n_levels: number of levels, 99 for .01, .02, ..., .99.
        **common: further arguments, see `BagEstimator`.
    """

    def __init__(self, preset: str = "default", *, n_levels: int = 99, **common: Any) -> None:
        super().__init__(preset, **common)
        self.n_levels = n_levels

    def _make_head(self, settings: Settings) -> Head:
        return QuantileGridHead(self.n_levels)


class PoissonRegressor(DistributionRegressor):
    """The same network with a Poisson head for counts of one kind, trained by likelihood."""

    def _check_y(self, y: Any, must_vary: bool) -> Any:
        if np.ndim(y) == 2:
            if y.shape[1] > 1:
                raise ValueError(f"PoissonRegressor predicts one target, got {y.shape[1]}.")
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected.",
                DataConversionWarning,
                stacklevel=4,
            )
        y = super()._check_y(y, must_vary)
        if (y < 0).any():
            raise ValueError("PoissonRegressor needs counts, but y has negative values.")
        return y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.target_tags.multi_output = False
        return tags

    def _make_head(self, settings: Settings) -> Head:
        return PoissonHead()
