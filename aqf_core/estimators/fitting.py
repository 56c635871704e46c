"""From checked arrays to a trained, recalibrated bag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..conditioners.base import Conditioner
from ..normal import base_to_level, level_to_base
from ..recalibration import Recalibration, make_recalibration
from ..spaces import OutputSpace, Support
from .bag import BagMLP, GaussianChain
from .encoding import FeatureEncoding
from .heads import FlowHead, Head
from .loop import History, Rows, Schedule, Split, padded, train
from .model import BagModel
from .prediction import Fitted
from .preparation import group_rows, make_split
from .presets import Settings
from .progress import progress_bar

__all__ = ["Recipe", "fit_bag"]

Array = NDArray[Any]

# Observations behind a recalibration; more do not move it.
MAX_PIT = 20_000
# The recalibration believes this many observations of a calibrated model before it sees any.
PRIOR_PIT = 20


@dataclass(frozen=True)
class Recipe:
    """What an estimator asks for.

    Attributes:
        settings: sizes, rates and steps.
        head: builds the head.
        dependence: between several targets: "independent", "flow" or "gaussian".
        support: bounds of the targets.
        categories: number of categories of each column, None for numbers.
        seed: of everything random.
        device: where to train.
        verbose: whether to show progress.
    """

    settings: Settings
    head: Callable[[], Head]
    dependence: str
    support: Support | None
    categories: Sequence[int | None]
    seed: int
    device: torch.device
    verbose: int = 0


def fit_bag(
    recipe: Recipe,
    X: Array,
    y: Array,
    weights: Array | None = None,
    eval_set: tuple[Array, Array] | None = None,
    previous: Fitted | None = None,
    one_pass: bool = False,
) -> tuple[Fitted, History]:
    """Train a bag and recalibrate it on the rows its members left out.

    Args:
        recipe: see `Recipe`.
        X: (n, p) float64, NaN where missing.
        y: (n,) or (n, d) float64.
        weights: (n,), non-negative.
        eval_set: rows that judge all members instead of the ones they leave out.
        previous: a bag to continue.
        one_pass: learn from every row once at a constant rate, leaving out none.
    """
    settings, device = recipe.settings, recipe.device
    X, y, w = group_rows(X, y, weights)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(recipe.seed)
        fitted = previous or _start(recipe, X, y, w)
        model = fitted.model.float().to(device)
        n = len(X)
        if eval_set is not None:
            X, y = np.concatenate([X, eval_set[0]]), np.concatenate([y, eval_set[1]])
            w = np.concatenate([w, np.ones(len(eval_set[0]))])
        data = _rows(fitted, X, y, w)
        split = _split(settings, n, len(X) - n, one_pass).to(device)
        schedule = _schedule(settings, min(len(rows) for rows in split.learn), one_pass)
        with progress_bar(schedule.steps, recipe.verbose) as progress:
            history = train(model, data, split, schedule, progress)
        model.double().eval()
        recalibration = None
        if not one_pass and settings.recalibrate != "none" and not model.head.counts:
            recalibration = _recalibrate(settings, model, data, split)
    return Fitted(model, fitted.loc, fitted.scale, recalibration), history


def _start(recipe: Recipe, X: Array, y: Array, w: Array) -> Fitted:
    settings = recipe.settings
    outputs = None if y.ndim == 1 else y.shape[1]
    encoding = FeatureEncoding(settings.bins).fit(X, recipe.categories, w)
    head = recipe.head()
    network = _network(recipe, encoding.width, outputs, head)
    model = BagModel(encoding, network, head, outputs, recipe.support)
    loc, scale = np.zeros(y.shape[1:]), np.ones(y.shape[1:])
    if recipe.support is not None:
        model.space.fit(torch.from_numpy(y))
    elif not head.counts:
        # In float64 and outside of the model, so that large targets keep their digits.
        space = OutputSpace(outputs).double().fit(torch.from_numpy(y))
        loc, scale = space.loc.numpy(), space.scale.numpy()
    head.start(torch.from_numpy((y - loc) / scale).float())
    return Fitted(model, loc, scale)


def _network(recipe: Recipe, width: int, outputs: int | None, head: Head) -> Conditioner:
    s = recipe.settings
    options: dict[str, Any] = {
        "hidden": s.hidden,
        "activation": s.activation,
        "dropout": s.dropout,
        "skip": s.skip,
    }
    if outputs is not None and recipe.dependence == "gaussian":
        return GaussianChain(s.members, outputs, width, **options)
    alone = recipe.dependence != "flow"
    return BagMLP(s.members, outputs or 1, width, head.n_params, independent=alone, **options)


def _rows(fitted: Fitted, X: Array, y: Array, w: Array) -> Rows:
    model = fitted.model
    like = model.space.loc
    rows = model.encoding.standardise(X).to(like)
    targets = torch.from_numpy((y - fitted.loc) / fitted.scale).to(like)
    return Rows(model.encoding, rows, targets, torch.from_numpy(w / w.mean()).to(like))


def _split(settings: Settings, rows: int, extra: int, one_pass: bool) -> Split:
    everything = [torch.arange(rows)] * settings.members
    if one_pass:
        return Split(everything, [torch.arange(0)] * settings.members)
    if extra:
        return Split(everything, [torch.arange(rows, rows + extra)] * settings.members)
    return make_split(rows, settings.members, settings.folds)


def _schedule(settings: Settings, rows: int, one_pass: bool) -> Schedule:
    batch = settings.batch_for(rows)
    if one_pass:
        steps = settings.steps or max(1, rows // batch)
        return Schedule(
            steps, batch, 0.3 * settings.learning_rate, settings.weight_decay, flat=True
        )
    evaluations = 60
    return Schedule(
        settings.steps_for(rows),
        batch,
        settings.learning_rate,
        settings.weight_decay,
        evaluations=evaluations,
        patience=max(1, round(settings.patience * evaluations)),
    )


@torch.no_grad()
def _recalibrate(
    settings: Settings, model: BagModel, data: Rows, split: Split
) -> Recalibration | None:
    z, w = held_out_base(model, data, split)
    if len(z) < 2:
        return None
    z = _weighted_sample(z, w, min(MAX_PIT, len(z)))
    prior = level_to_base((torch.arange(PRIOR_PIT, dtype=z.dtype) + 0.5) / PRIOR_PIT)
    z = torch.cat([z, prior.reshape(-1, *[1] * (z.dim() - 1)).expand(-1, *z.shape[1:])])
    recalibration = make_recalibration(settings.recalibrate, per_column=z.dim() > 1)
    return recalibration.fit(base_to_level(z))


def held_out_base(model: BagModel, data: Rows, split: Split) -> tuple[Tensor, Tensor]:
    """Base values of rows under the members that did not learn from them.

    Returns:
        z of shape (m,) or (m, d), standard normal if the predictions are calibrated, and weights
        (m,). Rows left out by several members are judged by the mixture of these; the conditionals
        of a joint model are judged member by member.
    """
    index, present = padded(split.held)
    y = data.y[index].double()
    h = model.numbers(data.inputs(index).double(), y)
    real = present > 0
    if model.joint:
        assert isinstance(model.head, FlowHead)
        z = model.head.transformer.to_base(model.space.to_model(y)[0], h)
        return z[real].cpu(), data.weights[index][real].double().cpu()
    below = model.head.distribution(h, model.space).cdf(y)
    total = torch.zeros(len(data), *y.shape[2:], dtype=torch.float64, device=y.device)
    total.index_add_(0, index[real], below[real])
    count = torch.zeros(len(data), dtype=torch.float64, device=y.device)
    count.index_add_(0, index[real], present[real].double())
    rows = count > 0
    mean = total[rows] / count[rows].reshape(-1, *[1] * (total.dim() - 1))
    return level_to_base(mean.clamp(1e-9, 1 - 1e-9)).cpu(), data.weights[rows].double().cpu()


def _weighted_sample(z: Tensor, weights: Tensor, most: int) -> Tensor:
    """At most `most` values that stand for z (m,) or (m, d) with weights (m,)."""
    if len(z) <= most and bool((weights == weights[0]).all()):
        return z
    effective = float(weights.sum().square() / weights.square().sum())
    size = max(2, min(most, round(effective)))
    levels = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    columns = []
    for column in z.reshape(len(z), -1).unbind(-1):
        order = column.argsort()
        share = weights[order].cumsum(0)
        pick = torch.searchsorted(share / share[-1], levels).clamp_max(len(z) - 1)
        columns.append(column[order[pick]])
    return torch.stack(columns, -1).reshape(size, *z.shape[1:])
