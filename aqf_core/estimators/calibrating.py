r"""Recalibrating a bag on rows that its members did not learn from.

Every row is an honest test of the members that left it out, but never of the whole bag: the others
know it. A member alone is too sure of itself, the mixture of all is less so, and a map fitted to
single members would make the mixture too wide. In units of a member's own spread let

    z = eps - delta_k          error of an honest member: noise (variance s2) and its own whim (t2),
    d = delta_k - mean delta   its distance from the mean of the members that know the row,

where the latter also lean towards the observation, by a share a of eps. Then

    A = E z^2 = s2 + t2
    B = E (z - d)^2 = (1 - a)^2 s2 + t2 / (K - 1)
    C = E z (z - d) = (1 - a) s2

determine s2 and t2. That t2 is an upper bound, because what d has beyond this model is counted as
disagreement; the variance among the members that know the row is a lower bound; their mean is used.
The mixture's error has variance s2 + t2 / K where it claims 1 + t2 (1 - 1 / K).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..normal import base_to_level, level_to_base
from ..recalibration import Recalibration, make_recalibration
from .loop import Rows, Split
from .model import BagModel

__all__ = ["pool_variances", "recalibrate"]

# Observations behind a recalibration; more do not move it.
MAX_ROWS = 4096
# The map believes this many observations of a calibrated model before it sees any.
PRIOR_ROWS = 20
# How far a spline map may bend away from a change of location and scale: hundreds of rows tell no
# more, and the mixture has a sensible shape already.
SHAPE_PRIOR = 0.1
# Beyond this many spreads an observation is an outlier, not a measure of spread.
FAR = 5.0


@torch.no_grad()
def recalibrate(
    name: str, model: BagModel, data: Rows, split: Split, shared: bool = False
) -> Recalibration | None:
    """Fit a recalibration of the mixture, or of every member's conditionals if the bag is joint.

    Args:
        name: of the recalibration.
        model: trained, float64.
        data: the rows.
        split: who learned from what.
        shared: whether all members left out the same rows.
    """
    row, owner = _holders(split.held[:1] if shared else split.held)
    if len(row) < 2:
        return None
    y, weights = data.y[row].double(), data.weights[row].double()
    inputs = data.inputs(row).double().expand(model.members, len(row), -1)
    h = model.numbers(inputs, y.expand(model.members, *y.shape))
    if (shared or model.members == 1) and not model.joint:
        z = model.head.pooled(h, model.space).to_base(y)
    else:
        z, others = _honest(model, h, owner, y)
        if model.members > 1:
            noise, whim = pool_variances(z, others, weights, shared)
            z = z * _factor(noise, whim, model.members, model.joint)
    z = _weighted_sample(z.cpu(), weights.cpu())
    steps = (torch.arange(PRIOR_ROWS, dtype=z.dtype) + 0.5) / PRIOR_ROWS
    prior = level_to_base(steps).reshape(-1, *[1] * (z.dim() - 1)).expand(-1, *z.shape[1:])
    options = {"prior": SHAPE_PRIOR} if name == "spline" else {}
    recalibration = make_recalibration(name, per_column=z.dim() > 1, **options)
    return recalibration.fit(base_to_level(torch.cat([z, prior])))


def _holders(held: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows that some member left out, thinned if they are many, and the first such member."""
    rows = torch.cat(held)
    owner = torch.repeat_interleave(
        torch.arange(len(held), device=rows.device),
        torch.tensor([len(r) for r in held], device=rows.device),
    )
    rows, order = rows.sort(stable=True)
    owner = owner[order]
    first = torch.ones_like(rows, dtype=torch.bool)
    first[1:] = rows[1:] != rows[:-1]
    rows, owner = rows[first], owner[first]
    if len(rows) > MAX_ROWS:
        pick = torch.linspace(0, len(rows) - 1, MAX_ROWS).round().long().to(rows.device)
        rows, owner = rows[pick], owner[pick]
    return rows, owner


def _honest(model: BagModel, h: Tensor, owner: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Base values under the owners: of y (R, ...), and of other members' medians (K-1, R, ...).

    Args:
        model: the bag.
        h: parameters of all members (K, R, ..., P).
        owner: the honest member of each row (R,).
        y: observations (R, ...).
    """
    rows = torch.arange(len(owner), device=owner.device)
    medians = model.head.distribution(h, model.space).median
    own = model.head.distribution(h[owner, rows], model.space)
    members = torch.arange(len(h) - 1, device=owner.device).unsqueeze(1)
    others = members + (members >= owner).long()  # all but the owner
    return own.to_base(y).clamp(-FAR, FAR), own.to_base(medians[others, rows]).clamp(-FAR, FAR)


def pool_variances(
    z: Tensor, others: Tensor, weights: Tensor, shared: bool = False
) -> tuple[Tensor, Tensor]:
    """Variances s2 of the noise and t2 of a member's whim, see above; of shape z.shape[1:].

    Args:
        z: base values of observations under honest members (R, ...).
        others: base values of the medians of K-1 other members (K-1, R, ...).
        weights: (R,).
        shared: whether the other members are honest as well.

    Example:
        >>> noise, whim = torch.randn(20000), 0.5 * torch.randn(10, 20000)
        >>> z, others = noise - whim[0], whim[1:] - whim[0]
        >>> s2, t2 = pool_variances(z, others, torch.ones(20000))
        >>> bool((s2 - 1).abs() < 0.1), bool((t2 - 0.25).abs() < 0.05)
        (True, True)
    """

    def mean(x: Tensor) -> Tensor:
        return (x.movedim(0, -1) * weights).sum(-1) / weights.sum()

    rest = len(others)
    lowest = mean(others.var(0)) if rest > 1 else 0.5 * mean(others.square()).squeeze(0)
    total = mean(z.square())
    if shared or rest == 1:
        return (total - lowest).clamp_min(0.05 * total), lowest
    error = z - others.mean(0)
    b = mean(error.square()) - total / rest
    c = mean(z * error)
    noise = 0.5 * rest * ((b.square() + 4 * c.square() / rest).sqrt() - b)
    whim = 0.5 * (lowest + (total - noise).clamp_min(0.0))
    whim = torch.minimum(whim, 0.95 * total)
    return total - whim, whim


def _factor(noise: Tensor, whim: Tensor, members: int, joint: bool) -> Tensor:
    """What turns honest base values of single members into those of the mixture.

    The members of a joint model are recalibrated one by one: they are given the spread with which
    their mixture is right.
    """
    if joint:
        wanted = (noise - whim * (1 - 2 / members)).clamp_min(0.1 * noise)
    else:
        wanted = (noise + whim / members) / (1 + whim * (1 - 1 / members))
    return (wanted / (noise + whim)).sqrt()


def _weighted_sample(z: Tensor, weights: Tensor) -> Tensor:
    """Values that stand for z (R,) or (R, d) with weights (R,); z itself if these are equal."""
    if bool((weights == weights[0]).all()):
        return z
    effective = float(weights.sum().square() / weights.square().sum())
    size = max(2, round(effective))
    levels = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    columns = []
    for column in z.reshape(len(z), -1).unbind(-1):
        order = column.argsort()
        share = weights[order].cumsum(0)
        pick = torch.searchsorted(share / share[-1], levels).clamp_max(len(z) - 1)
        columns.append(column[order[pick]])
    return torch.stack(columns, -1).reshape(size, *z.shape[1:])
