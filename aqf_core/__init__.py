"""Autoregressive quantile flows: exact, fast conditional distributions for PyTorch."""

from typing import TYPE_CHECKING, Any

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
from .distributions import GaussianPredictive, ScalarPredictive
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
from .flow_mixture import FlowMixture
from .flows import AutoregressiveQuantileFlow
from .interpolation import InterpolatedPredictive
from .inversion import invert_monotone
from .joint import JointPredictive
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
from .wrapping import WrappedPredictive, as_predictive

if TYPE_CHECKING:
    from .estimators import (
        CDFFlowClassifier,
        CDFFlowRegressor,
        GaussianMRFRegressor,
        GaussianRegressor,
        MixtureDensityRegressor,
        MultivariateQuantileRegressor,
        PoissonRegressor,
        QuantileFlowRegressor,
        QuantileGridRegressor,
    )

__version__ = "0.1.0"

# Estimators need scikit-learn, so they are imported when they are first asked for.
_ESTIMATORS = (
    "CDFFlowClassifier",
    "CDFFlowRegressor",
    "GaussianMRFRegressor",
    "GaussianRegressor",
    "MixtureDensityRegressor",
    "MultivariateQuantileRegressor",
    "PoissonRegressor",
    "QuantileFlowRegressor",
    "QuantileGridRegressor",
)


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'aqf_core' has no attribute {name!r}")
    from . import estimators

    return getattr(estimators, name)


__all__ = [
    "CONDITIONERS",
    "LEVELS",
    "RECALIBRATIONS",
    "TRANSFORMERS",
    "AQFError",
    "Affine",
    "AutoregressiveQuantileFlow",
    "CDFFlowClassifier",
    "CDFFlowRegressor",
    "Conditioner",
    "ConformalRecalibration",
    "ContextError",
    "DeepSigmoid",
    "DomainError",
    "FlowDistribution",
    "FlowMixture",
    "GaussianMRFRegressor",
    "GaussianPredictive",
    "GaussianRegressor",
    "Independent",
    "InterpolatedPredictive",
    "IsotonicRecalibration",
    "JointPredictive",
    "LevelError",
    "LevelStrategy",
    "MaskedMLP",
    "MixtureDensityRegressor",
    "MixturePredictive",
    "MonotoneNet",
    "MultivariateQuantileRegressor",
    "NonFiniteError",
    "OutputSpace",
    "PiecewiseLinear",
    "PixelCNN",
    "PoissonRegressor",
    "QuantileDistribution",
    "QuantileFlowRegressor",
    "QuantileFunction",
    "QuantileGridRegressor",
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
