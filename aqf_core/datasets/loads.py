"""Simulated hourly loads: series with a known make-up, for experiments that run anywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["simulate_loads"]


def simulate_loads(series: int = 24, hours: int = 24 * 70, seed: int = 0) -> NDArray[np.float64]:
    r"""Hourly loads (series, hours) of clients of very different size.

    \(x_t = s\,(1 + d_t w_t + e_t + b_t)\) with a size s (log-normal over clients), a daily profile
    d (two peaks at hours of the client's own), weekends w that are quieter, an autoregressive
    disturbance \(e_t = 0.8\,e_{t-1} + 0.05\,(1 + d_t)\,\epsilon_t\), and bursts b: with probability
    2 % an appliance starts that draws a gamma-distributed load and decays over a few hours, so that
    the noise is skewed. Loads are never negative.

    Args:
        series: number of clients.
        hours: length.
        seed: of everything.

    Example:
        >>> loads = simulate_loads(3, 100)
        >>> loads.shape, bool((loads >= 0).all())
        ((3, 100), True)
    """
    rng = np.random.default_rng(seed)
    clock = np.arange(hours)
    size = np.exp(rng.normal(4.0, 1.2, (series, 1)))
    morning, evening = rng.normal(8, 1.5, (series, 1)), rng.normal(19, 1.5, (series, 1))
    height = rng.uniform(0.2, 0.8, (2, series, 1))

    def peak(hour: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp(2.0 * (np.cos(2 * np.pi * (clock - hour) / 24) - 1.0))

    daily = height[0] * peak(morning) + height[1] * peak(evening)
    quiet = rng.uniform(0.3, 1.0, (series, 1))
    weekend = np.where(clock // 24 % 7 >= 5, quiet, 1.0)
    noise = rng.normal(size=(series, hours))
    starts = (rng.random((series, hours)) < 0.02) * rng.gamma(1.5, 0.3, (series, hours))
    disturbance, burst = np.zeros((series, hours)), np.zeros((series, hours))
    for t in range(hours):
        before = t - 1 if t else 0
        disturbance[:, t] = 0.8 * disturbance[:, before] + 0.05 * (1 + daily[:, t]) * noise[:, t]
        burst[:, t] = 0.7 * burst[:, before] + starts[:, t]
    loads: NDArray[np.float64] = size * (1.0 + daily * weekend + disturbance + burst)
    return np.maximum(loads, 0.0)
