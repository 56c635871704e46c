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
from .inversion import invert_monotone
from .levels import LEVELS, LevelStrategy, make_levels
from .mixtures import MixturePredictive
from .objectives import conditional_loss
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
from .transformers import (
    TRANSFORMERS,
    Affine,
    DeepSigmoid,
    MonotoneNet,
    PiecewiseLinear,
    RationalQuadraticSpline,
    SigmoidMixture,
    Transformer,
    Unconstrained,
    make_transformer,
)

__version__ = "0.1.0"

__all__ = [
    "CONDITIONERS",
    "LEVELS",
    "RECALIBRATIONS",
    "TRANSFORMERS",
    "AQFError",
    "Affine",
    "AutoregressiveQuantileFlow",
    "Conditioner",
    "ConformalRecalibration",
    "ContextError",
    "DeepSigmoid",
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
    "MonotoneNet",
    "NonFiniteError",
    "OutputSpace",
    "PiecewiseLinear",
    "PixelCNN",
    "QuantileDistribution",
    "QuantileFunction",
    "RationalQuadraticSpline",
    "RecalibratedPredictive",
    "Recalibration",
    "Recurrent",
    "ScalarPredictive",
    "ShapeError",
    "SigmoidMixture",
    "SplineRecalibration",
    "Transformer",
    "Unconstrained",
    "UnknownNameError",
    "WrappedPredictive",
    "__version__",
    "as_predictive",
    "conditional_loss",
    "invert_monotone",
    "losses",
    "make_conditioner",
    "make_levels",
    "make_recalibration",
    "make_transformer",
    "metrics",
    "plots",
]
