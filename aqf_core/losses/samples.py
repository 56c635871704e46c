r"""Scores of sample-based predictions: CRPS and its multivariate form, the energy score."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ShapeError
from ..validation import at_least_float32, reduce

__all__ = ["energy_score", "sample_crps"]


def _pair_count(samples: int, fair: bool) -> int:
    if samples < 2 and fair:
        raise ShapeError(f"the fair estimator needs at least 2 samples, got {samples}.")
    if samples < 1:
        raise ShapeError("at least one sample is needed, got none.")
    return samples - 1 if fair else samples


def sample_crps(samples: Tensor, x: Tensor, fair: bool = True, reduction: str = "mean") -> Tensor:
    r"""CRPS of an ensemble: \(\frac1m\sum_i|X_i - x| - \frac{1}{2 m k}\sum_{ij}|X_i - X_j|\).

    k = m - 1 gives the *fair* estimator, which is unbiased for the CRPS of the distribution the
    samples come from. k = m gives the score of the empirical distribution, which is larger by
    about a fraction 1/m on identical forecasts: never compare it across ensemble sizes.
    Costs a sort, O(m log m).

    Args:
        samples: (m, ...), m >= 2 (m >= 1 when not fair).
        x: observations (...).
        fair: unbiased (default) or empirical.
        reduction: "mean", "sum" or "none".

    Example:
        >>> sample_crps(torch.tensor([0.0, 1.0]), torch.tensor(0.0), fair=False)
        tensor(0.2500)
        >>> sample_crps(torch.tensor([0.0, 1.0]), torch.tensor(0.0))
        tensor(0.)
    """
    m = samples.shape[0] if samples.dim() else 0
    k = _pair_count(m, fair)
    # Sorting deviations instead of samples keeps precision when both are large.
    deviation = at_least_float32(samples - x).sort(dim=0).values
    rank = torch.arange(1, m + 1, dtype=deviation.dtype, device=deviation.device)
    rank = (2 * rank - m - 1).reshape(-1, *[1] * (deviation.dim() - 1))
    spread = (rank * deviation).sum(0) / (m * k)
    return reduce(deviation.abs().mean(0) - spread, reduction)


def energy_score(samples: Tensor, x: Tensor, fair: bool = True, reduction: str = "mean") -> Tensor:
    r"""Energy score \(\frac1m\sum_i\|X_i - x\| - \frac{1}{2 m k}\sum_{ij}\|X_i - X_j\|\).

    The CRPS of d-dimensional samples; strictly proper, so it judges the joint distribution. With
    k = m - 1 (fair) its expectation does not depend on the number of samples.

    Args:
        samples: (m, ..., d), m >= 2 (m >= 1 when not fair).
        x: observations (..., d).
        fair: unbiased (default) or empirical.
        reduction: "mean", "sum" or "none" (then (...)).

    Example:
        >>> samples = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> energy_score(samples, torch.zeros(2), fair=False)  # 5 / 2 - (5 + 5) / 8
        tensor(1.2500)
    """
    if samples.dim() < 2 or x.dim() < 1 or samples.shape[-1] != x.shape[-1]:
        raise ShapeError(
            f"samples (m, ..., d) and x (..., d) must share d, got {tuple(samples.shape)} "
            f"and {tuple(x.shape)}."
        )
    m = samples.shape[0]
    k = _pair_count(m, fair)
    deviation = at_least_float32(samples - x).movedim(0, -2)  # (..., m, d)
    near = deviation.norm(dim=-1).mean(-1)  # torch's norm has gradient 0 at 0
    # cdist never stores the (m, m, d) differences, and its gradient at distance 0 is 0.
    pairs = torch.cdist(deviation, deviation, compute_mode="donot_use_mm_for_euclid_dist")
    return reduce(near - pairs.sum((-2, -1)) / (2 * m * k), reduction)
