"""Learning rates over the course of training."""

from __future__ import annotations

import math

__all__ = ["one_cycle"]


def one_cycle(step: int, steps: int, warm_up: float = 0.15) -> float:
    """Share of the highest learning rate at a step: a cosine up, a cosine down.

    Args:
        step: 0, ..., steps - 1.
        steps: of the whole training.
        warm_up: share of the steps in which the rate rises.

    Example:
        >>> [round(one_cycle(step, 100), 2) for step in (0, 14, 57, 99)]
        [0.04, 1.0, 0.51, 0.0]
    """
    rise = max(1.0, warm_up * steps)
    if step < rise:
        return max(0.04, 0.5 - 0.5 * math.cos(math.pi * (step + 1) / rise))
    share = (step - rise) / max(1.0, steps - rise)
    return max(1e-3, 0.5 + 0.5 * math.cos(math.pi * share))
