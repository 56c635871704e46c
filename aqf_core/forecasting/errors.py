"""What can be wrong with time series."""

from __future__ import annotations

from ..errors import AQFError

__all__ = ["NotFittedError", "SeriesError"]


class SeriesError(AQFError, ValueError):
    """Time series, their time stamps or their covariates cannot be used as they are."""


class NotFittedError(AQFError, ValueError):
    """A forecast was asked of a forecaster that has not learned anything yet."""
