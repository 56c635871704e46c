"""Evaluation: proper scores, calibration, intervals, point errors.

Every function takes NumPy arrays or torch tensors and returns the same kind. Tables of quantiles
are passed as (levels, quantiles, y), with the levels in the last dimension of `quantiles`.
"""

from .accuracy import d_loss, mae, nd, nrmse, rmse
from .calibration import (
    calibration_curve,
    calibration_curve_from_pit,
    calibration_mae,
    calibration_mae_floor,
    calibration_mae_from_pit,
    coverage,
    crossing_rate,
    interval_width,
    percent_levels,
    pit,
    pit_from_quantiles,
    pit_from_samples,
    winkler_score,
)
from .scores import (
    check_score,
    crps_from_quantiles,
    crps_from_samples,
    crps_gaussian,
    crps_gaussian_mixture,
    crps_interpolated,
    energy_score,
    voronoi_weights,
    weighted_quantile_loss,
)
from .two_sample import classifier_two_sample_test, nearest_neighbours

__all__ = [
    "calibration_curve",
    "calibration_curve_from_pit",
    "calibration_mae",
    "calibration_mae_floor",
    "calibration_mae_from_pit",
    "check_score",
    "classifier_two_sample_test",
    "coverage",
    "crossing_rate",
    "crps_from_quantiles",
    "crps_from_samples",
    "crps_gaussian",
    "crps_gaussian_mixture",
    "crps_interpolated",
    "d_loss",
    "energy_score",
    "interval_width",
    "mae",
    "nd",
    "nearest_neighbours",
    "nrmse",
    "percent_levels",
    "pit",
    "pit_from_quantiles",
    "pit_from_samples",
    "rmse",
    "voronoi_weights",
    "weighted_quantile_loss",
    "winkler_score",
]
