"""Training losses and proper scores as free, differentiable functions.

All take the prediction first, then the observation `x`, and a `reduction`.
"""

from .cdf import crps_loss, gauss_legendre
from .parametric import (
    gaussian_crps,
    gaussian_kl_loss,
    gaussian_mixture_crps,
    gaussian_nll,
    logistic_crps,
)
from .quantile import (
    interpolated_crps,
    interpolation_levels,
    piecewise_linear_crps,
    pinball_loss,
    quantile_loss,
)
from .samples import energy_score, sample_crps

__all__ = [
    "crps_loss",
    "energy_score",
    "gauss_legendre",
    "gaussian_crps",
    "gaussian_kl_loss",
    "gaussian_mixture_crps",
    "gaussian_nll",
    "interpolated_crps",
    "interpolation_levels",
    "logistic_crps",
    "piecewise_linear_crps",
    "pinball_loss",
    "quantile_loss",
    "sample_crps",
]
