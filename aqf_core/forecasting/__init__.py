"""Probabilistic forecasting of time series with quantile flows.

    from aqf_core.forecasting import QuantileFlowForecaster

    forecast = QuantileFlowForecaster(horizon=24).fit(series).predict()

Needs torch and numpy; pandas frames are understood where pandas is installed.
"""

from .errors import NotFittedError, SeriesError
from .forecast import Forecast
from .forecaster import Forecaster
from .forecasters import DeepARForecaster, MQRNNForecaster, QuantileFlowForecaster
from .frequency import Frequency
from .outputs import (
    OUTPUTS,
    GaussianOutput,
    Output,
    QuantileFlowOutput,
    QuantileGridOutput,
    StudentTOutput,
    make_output,
)
from .series import SeriesSet, read_series
from .settings import PRESETS, Settings

__all__ = [
    "OUTPUTS",
    "PRESETS",
    "DeepARForecaster",
    "Forecast",
    "Forecaster",
    "Frequency",
    "GaussianOutput",
    "MQRNNForecaster",
    "NotFittedError",
    "Output",
    "QuantileFlowForecaster",
    "QuantileFlowOutput",
    "QuantileGridOutput",
    "SeriesError",
    "SeriesSet",
    "Settings",
    "StudentTOutput",
    "make_output",
    "read_series",
]
