"""The forecasters: one network, one training loop, one sampler, three kinds of output."""

from __future__ import annotations

from typing import Any

from ..validation import lookup
from .forecaster import Forecaster

__all__ = ["DeepARForecaster", "MQRNNForecaster", "QuantileFlowForecaster"]


class QuantileFlowForecaster(Forecaster):
    """Autoregressive quantile flow: every step emits a whole quantile function.

    Trained by the quantile loss (half the CRPS), without any assumption about the shape of the
    noise; quantiles never cross. Arguments: see `Forecaster`.

    Example:
        >>> import numpy as np
        >>> hours = np.arange(24 * 40)
        >>> rng = np.random.default_rng(0)
        >>> load = 10 + 3 * np.sin(2 * np.pi * hours / 24) + rng.gamma(2.0, size=len(hours))
        >>> model = QuantileFlowForecaster("fast", steps=40, random_state=0).fit(load)
        >>> forecast = model.predict(n=100)
        >>> forecast.shape, forecast.quantiles([0.1, 0.5, 0.9]).shape
        ((1, 100, 24), (1, 24, 3))
        >>> model.predict_event(peak_above=8.0)
        array([1.])
    """

    _output = "flow"

    def _output_options(self) -> dict[str, Any]:
        s = self.settings
        return {
            "transformer": s.transformer,
            "levels": s.levels,
            "scheme": s.scheme,
            "paths": s.rollout,
            **dict(s.transformer_options),
        }


class DeepARForecaster(Forecaster):
    """DeepAR: every step emits a Gaussian or Student's t distribution, trained by likelihood.

    Args:
        preset: see `Forecaster`, also for the other arguments.
        distribution: "gaussian" or "student-t".
    """

    def __init__(
        self, preset: str = "default", *, distribution: str = "gaussian", **common: Any
    ) -> None:
        super().__init__(preset, **common)
        kinds = {"gaussian": "gaussian", "student-t": "student-t"}
        self.distribution = lookup(distribution, kinds, "distribution")

    def _output_name(self) -> str:
        return self.distribution

    def _extra(self) -> dict[str, Any]:
        return {"distribution": self.distribution}


class MQRNNForecaster(Forecaster):
    """MQ-RNN: every step emits five quantiles (.1, .25, .5, .75, .9), interpolated linearly.

    Trained by the pinball loss at these levels; the tails are exponential. Arguments: see
    `Forecaster`.
    """

    _output = "quantiles"
