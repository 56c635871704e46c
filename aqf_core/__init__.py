"""Autoregressive quantile flows: exact, fast conditional distributions for PyTorch."""

from . import losses, metrics, plots
from .conditioners import (
    CONDITIONERS,
    Conditioner,
    Independent,
    MaskedMLP,
    PixelCNN,
    Recurrent,
    make_conditioner,
)
from .distributions import (
    GaussianPredictive,
    ScalarPredictive,
    WrappedPredictive,
    as_predictive,
)
from .errors import (
    AQFError,
    ContextError,
    DomainError,
    LevelError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from .flow_distribution import FlowDistribution
from .flows import AutoregressiveQuantileFlow
from .interpolation import InterpolatedPredictive
from .levels import LEVELS, LevelStrategy, make_levels
from .mixtures import MixturePredictive
from .quantile_function import QuantileDistribution, QuantileFunction
from .recalibration import (
    RECALIBRATIONS,
    ConformalRecalibration,
    IsotonicRecalibration,
    RecalibratedPredictive,
    Recalibration,
    SplineRecalibration,
    make_recalibration,
)
from .spaces import OutputSpace

__version__ = "0.1.0"

__all__ = [
    "CONDITIONERS",
    "LEVELS",
    "RECALIBRATIONS",
    "AQFError",
    "AutoregressiveQuantileFlow",
    "Conditioner",
    "ConformalRecalibration",
    "ContextError",
    "DomainError",
    "FlowDistribution",
    "GaussianPredictive",
    "Independent",
    "InterpolatedPredictive",
    "IsotonicRecalibration",
    "LevelError",
    "LevelStrategy",
    "MaskedMLP",
    "MixturePredictive",
    "NonFiniteError",
    "OutputSpace",
    "PixelCNN",
    "QuantileDistribution",
    "QuantileFunction",
    "RecalibratedPredictive",
    "Recalibration",
    "Recurrent",
    "ScalarPredictive",
    "ShapeError",
    "SplineRecalibration",
    "UnknownNameError",
    "WrappedPredictive",
    "__version__",
    "as_predictive",
    "losses",
    "make_conditioner",
    "make_levels",
    "make_recalibration",
    "metrics",
    "plots",
]
