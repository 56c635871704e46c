"""Estimators for scikit-learn: predictive distributions in three lines.

They need scikit-learn (`pip install scikit-learn`), which the rest of `aqf_core` does not.
"""

from __future__ import annotations

try:
    import sklearn  # noqa: F401
except ImportError:
    raise ImportError(
        "the estimators of aqf_core need scikit-learn; install it with `pip install scikit-learn`."
    ) from None

from .classifier import CDFFlowClassifier
from .joint_prediction import JointPrediction
from .persistence import ModelFileError
from .prediction import Prediction
from .presets import PRESETS, Settings
from .regressor import DistributionRegressor
from .regressors import (
    CDFFlowRegressor,
    GaussianMRFRegressor,
    GaussianRegressor,
    MixtureDensityRegressor,
    MultivariateQuantileRegressor,
    PoissonRegressor,
    QuantileFlowRegressor,
    QuantileGridRegressor,
)
from .scorers import (
    SCORERS,
    interval_scorer,
    log_likelihood,
    neg_calibration_mae,
    neg_check_score,
    neg_crps,
    pinball_scorer,
)

__all__ = [
    "PRESETS",
    "SCORERS",
    "CDFFlowClassifier",
    "CDFFlowRegressor",
    "DistributionRegressor",
    "GaussianMRFRegressor",
    "GaussianRegressor",
    "JointPrediction",
    "ModelFileError",
    "MixtureDensityRegressor",
    "MultivariateQuantileRegressor",
    "PoissonRegressor",
    "Prediction",
    "QuantileFlowRegressor",
    "QuantileGridRegressor",
    "Settings",
    "interval_scorer",
    "log_likelihood",
    "neg_calibration_mae",
    "neg_check_score",
    "neg_crps",
    "pinball_scorer",
]
