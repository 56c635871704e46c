"""Recalibrating sample paths step by step, while their dependence over time stays.

Rolled-out paths tend to be too sure of themselves: a network that learned to predict one step from
the truth never saw its own errors. On held-out windows the rank of the truth among the paths tells
how far, separately for each step of the horizon. The repaired value of a path at a step is the
quantile, over all paths of its window, of the repaired level; paths keep their ranks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..levels import fixed_levels
from ..normal import base_to_level, level_to_base
from ..recalibration import Recalibration, make_recalibration
from .following import LevelMap

__all__ = ["FEWEST", "fit_recalibration", "fit_widening", "repair_paths"]

# Fewer held-out windows than this say too little about the tails.
FEWEST = 20
# Base values of a truth far outside the paths say "far away" and nothing more.
FARTHEST = 6.0
# Coverage at which a single factor is right, and its largest logarithm. It never narrows: the few
# held-out windows of a short series are seldom as hard as what comes.
COVERAGE, WIDEST = 0.8, 1.5


def fit_recalibration(
    kind: str, paths: Tensor, truth: Tensor, seed: int = 0
) -> Recalibration | None:
    """A map for each step of the horizon, or None if there are too few windows.

    Args:
        kind: "spline", "isotonic", "conformal" or "none".
        paths: (W, n, H).
        truth: (W, H), NaN where unknown.
        seed: of the ranks among equal values.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> sure = 0.5 * torch.randn(500, 100, 3)
        >>> recalibration = fit_recalibration("isotonic", sure, torch.randn(500, 3))
        >>> wide = repair_paths(sure, recalibration)
        >>> round(float(wide.std()))
        1
    """
    whole = ~truth.isnan().any(-1)
    if kind == "none" or int(whole.sum()) < FEWEST:
        return None
    generator = torch.Generator(device=paths.device).manual_seed(seed)
    z = _truth_in_base(paths[whole].double(), truth[whole].double(), generator)
    return make_recalibration(kind, per_column=True).fit(base_to_level(z))


def fit_widening(paths: Tensor, truth: Tensor, seed: int = 0) -> Tensor | None:
    """One factor for the width of all intervals, where a map for each step would be learned from
    too little: logarithms (2, H) as in `following`, or None if nothing is known.

    The factor is a conformal one: with n truths, 80 % intervals hold at least .8 (n + 1) of them.

    Args:
        paths: (W, n, H).
        truth: (W, H), NaN where unknown.
        seed: of the ranks among equal values.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> stretch = fit_widening(0.5 * torch.randn(9, 100, 3), torch.randn(9, 3))
        >>> stretch.shape, bool(stretch[0, 0] > 0.4)
        (torch.Size([2, 3]), True)
    """
    known = ~truth.isnan()
    count = int(known.sum())
    if count == 0:
        return None
    generator = torch.Generator(device=paths.device).manual_seed(seed)
    z = _truth_in_base(paths.double(), truth.double().nan_to_num(), generator)[known].abs()
    place = min(count, math.ceil(COVERAGE * (count + 1)))
    edge = level_to_base(torch.tensor(0.5 + 0.5 * COVERAGE, dtype=torch.float64))
    factor = (z.sort().values[place - 1] / edge).clamp_min(1e-3).log().clamp(0.0, WIDEST)
    return factor.cpu().expand(2, truth.shape[1]).clone()


def _levels(paths: Tensor) -> Tensor:
    """Base values (n,) of the ordered paths (W, n, H)."""
    return level_to_base(fixed_levels(paths.shape[1], dtype=torch.float64, device=paths.device))


def _ends(right: Tensor, below: Tensor, above: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Ranks of the two ordered paths through which the quantile function is a straight line.

    Between ordered paths it is linear in the base variable; beyond them it goes on with the slope
    of the outer twentieth of the paths.
    """
    right = right.clamp(1, n - 1)
    reach = max(1, n // 20)
    left = torch.where(below, 0, torch.where(above, n - 1 - reach, right - 1))
    return left, torch.where(below, reach, torch.where(above, n - 1, right))


def _truth_in_base(paths: Tensor, truth: Tensor, generator: torch.Generator) -> Tensor:
    """Where the truth (W, H) lies among the paths, as a base value (W, H)."""
    n = paths.shape[1]
    level = _levels(paths)
    ordered = paths.movedim(1, -1).contiguous().sort(-1).values  # (W, H, n)
    y = truth.unsqueeze(-1)
    lower = torch.searchsorted(ordered, y)
    upper = torch.searchsorted(ordered, y, right=True)
    left, right = _ends(lower, lower == 0, upper == n, n)
    low, high = ordered.gather(-1, left), ordered.gather(-1, right)
    rise = (high - low).clamp_min(torch.finfo(low.dtype).tiny)
    slope = (level[right] - level[left]) / rise
    z = (level[left] + (y - low) * slope).clamp(-FARTHEST, FARTHEST)
    # Among paths that equal the truth its rank is a matter of chance.
    u = torch.rand(lower.shape, generator=generator, dtype=y.dtype, device=y.device)
    tied = level_to_base((lower + u * (upper - lower)) / n)
    return torch.where(upper > lower, tied, z).squeeze(-1)


def repair_paths(paths: Tensor, recalibration: Recalibration | LevelMap) -> Tensor:
    """Paths (W, n, H) whose values at each step follow the recalibrated distribution."""
    n, horizon = paths.shape[1:]
    level = _levels(paths)
    wanted = recalibration.from_base(level[:, None].expand(n, horizon)).to(paths.device)
    ordered, order = paths.sort(1)
    place = torch.searchsorted(level, wanted.contiguous())
    left, right = _ends(place, wanted < level[0], wanted > level[-1], n)
    share = ((wanted - level[left]) / (level[right] - level[left])).to(paths.dtype)
    low = ordered.gather(1, left.expand_as(ordered))
    high = ordered.gather(1, right.expand_as(ordered))
    return torch.empty_like(paths).scatter_(1, order, low + share * (high - low))
