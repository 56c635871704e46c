"""Scoring one-dimensional conditionals: the one place where a model meets its observation.

    quantile loss   L2 = integral over u of rho_u(x - Q(u))
    CRPS            L1 = integral over t of (F(t) - 1[x <= t])^2 = 2 L2
    nll             -log p(x)

Because L1 = 2 L2, no training objective needs root finding: families with a closed form use it,
models of Q integrate the pinball loss over levels, and models of F integrate the squared distance
of F from the step at the observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .levels import LevelStrategy, make_levels
from .losses.cdf import gauss_legendre
from .normal import base_to_level, random_level_to_base
from .spaces import OutputSpace
from .transformers.base import Transformer
from .validation import lookup

__all__ = ["OBJECTIVES", "conditional_loss", "standardised_loss"]

# Half of the nodes of a half-line lie within this many scales (and the way to the location).
REACH = 2.0

Levels = int | str | Tensor | LevelStrategy

# What the loss of a CDF model is multiplied by, relative to its CRPS.
OBJECTIVES = {"quantile": 0.5, "crps": 1.0, "nll": 0.0}


def conditional_loss(
    transformer: Transformer,
    space: OutputSpace,
    x: Tensor,
    h: Tensor,
    objective: str = "quantile",
    levels: Levels = 8,
) -> Tensor:
    """Score observations under the conditionals with parameters h, in units of `space.unit`.

    Args:
        transformer: the family of conditionals, in the standardised space.
        space: the map between data and standardised space.
        x: observations (..., features), or any shape for a space without features.
        h: parameters (*x.shape, transformer.n_params).
        objective: "quantile", "crps" (twice "quantile") or "nll".
        levels: how losses without a closed form are integrated, see `make_levels`: models of Q
            use these levels, models of F four times as many points in outcome space. Random
            strategies draw new points at every call, "fixed" ones do not.

    Returns:
        One loss per observation, of the shape of x.

    Example:
        >>> from aqf_core.transformers import Affine
        >>> x, h = torch.tensor([0.0, 1.0]), torch.zeros(2, 2)
        >>> conditional_loss(Affine(), OutputSpace(), x, h, "crps")
        tensor([0.2337, 0.6024])
    """
    return standardised_loss(transformer, space, x, *space.to_model(x), h, objective, levels)


def standardised_loss(
    transformer: Transformer,
    space: OutputSpace,
    x: Tensor,
    y: Tensor,
    log_slope: Tensor,
    h: Tensor,
    objective: str,
    levels: Levels,
) -> Tensor:
    """`conditional_loss` for observations x whose `space.to_model`, (y, log_slope), is known."""
    factor = lookup(objective, OBJECTIVES, "objective")
    if objective == "nll":
        return -transformer.log_prob(y, h) - log_slope - space.unit.to(x.dtype).log()
    if space.is_linear:
        unit = (space.scale / space.unit).to(x.dtype)
        exact = transformer.crps(y, h)
        if exact is not None:
            return factor * unit * exact
    if transformer.direction == "quantile":
        return 2.0 * factor * _pinball(transformer, space, x, y, h, levels)
    return factor * _squared_distance(transformer, space, x, y, h, levels)


def _pinball(
    transformer: Transformer,
    space: OutputSpace,
    x: Tensor,
    y: Tensor,
    h: Tensor,
    levels: Levels,
) -> Tensor:
    """Mean over levels u of rho_u(x - Q(u)), in units of `space.unit`."""
    u = make_levels(levels)(y.shape, dtype=y.dtype, device=y.device)
    z = random_level_to_base(u)
    if space.is_linear:
        return transformer.pinball(y, z, u, h) * (space.scale / space.unit).to(y.dtype)
    error = x.unsqueeze(-1) - _by_level(space.to_data, transformer.from_base(z, h.unsqueeze(-2)))
    return (u * error + torch.relu(-error)).mean(-1) / space.unit.to(y.dtype)


def _squared_distance(
    transformer: Transformer,
    space: OutputSpace,
    x: Tensor,
    y: Tensor,
    h: Tensor,
    levels: Levels,
) -> Tensor:
    """Integral of F^2 left of x and of (1 - F)^2 right of it.

    Each side is mapped to (0, 1) by a Moebius map t(v), which takes in half-lines as well, and
    integrated by the Gauss-Legendre rule. The map has a random constant: a model cannot hide
    between nodes that move at every call, and the errors for a step-like F average out.
    """
    strategy = make_levels(levels)
    node, weight = gauss_legendre(2 * strategy.n, dtype=y.dtype, device=y.device)
    jitter = torch.ones_like(y)
    if getattr(strategy, "name", "fixed") != "fixed":
        jitter = torch.exp(torch.rand_like(y) - 0.5)
    if space.is_linear:
        start, unit = y, space.scale / space.unit
        loc, scale = transformer.location_scale(h.detach())
        left = _half_line((y - loc).clamp(min=0.0) + REACH * scale, jitter, node)
        right = _half_line((loc - y).clamp(min=0.0) + REACH * scale, jitter, node)
    else:
        start, unit = x, 1.0 / space.unit
        spread = space.unit.to(x.dtype).expand_as(x)
        left, right = (
            _segment((x - bound).abs(), jitter, node)
            if math.isfinite(bound)
            else _half_line(REACH * spread, jitter, node)
            for bound in (space.low, space.high)
        )
    points = start.unsqueeze(-1) + torch.cat([-left[0], right[0]], -1)
    weights = torch.cat([weight * left[1], weight * right[1]], -1)
    if not space.is_linear:
        points = _by_level(lambda t: space.to_model(t)[0], points)
    z = transformer.to_base(points, h.unsqueeze(-2))
    side = torch.ones_like(node)
    distance = base_to_level(z * torch.cat([side, -side]))
    return (weights * distance.square()).sum(-1) * unit.to(y.dtype)


def _half_line(length: Tensor, jitter: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """Distances r = L v / (1 - v) of nodes v, shape (..., n), and dr/dv."""
    length = (length * jitter).unsqueeze(-1)
    rest = 1.0 - node
    return length * (node / rest), length / rest.square()


def _segment(length: Tensor, jitter: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """Distances r = L v / (v + c (1 - v)) of nodes v, shape (..., n), and dr/dv."""
    length, c = length.unsqueeze(-1), jitter.unsqueeze(-1)
    denominator = node + c * (1.0 - node)
    return length * node / denominator, length * c / denominator.square()


def _by_level(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of (..., features) to (..., features, A)."""
    return function(x.movedim(-1, 0)).movedim(0, -1)
