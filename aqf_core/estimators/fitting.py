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
from ..progress import progress_bar
from ..spaces import OutputSpace, Support
from .bag import BagMLP, GaussianChain
from .calibrating import recalibrate
from .encoding import FeatureEncoding
from .heads import Head
from .loop import History, Rows, Schedule, Split, train
from .model import BagModel
from .prediction import Fitted
from .preparation import POSITIVE, group_rows, make_split
from .presets import Settings

__all__ = ["Recipe", "build_model", "fit_bag"]

Array = NDArray[Any]


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
            shared = eval_set is not None
            recalibration = recalibrate(settings.recalibrate, model, data, split, shared)
    return Fitted(model, fitted.loc, fitted.scale, recalibration), history


def _start(recipe: Recipe, X: Array, y: Array, w: Array) -> Fitted:
    settings = recipe.settings
    outputs = None if y.ndim == 1 else y.shape[1]
    encoding = FeatureEncoding(settings.bins).fit(X, recipe.categories, w)
    model = build_model(recipe, encoding, outputs)
    head = model.head
    loc, scale = np.zeros(y.shape[1:]), np.ones(y.shape[1:])
    if recipe.support == POSITIVE:
        # This bound stays where it is when the targets are scaled.
        scale = OutputSpace(outputs).double().fit(torch.from_numpy(y)).scale.numpy()
        model.space.fit(torch.from_numpy(y / scale))
    elif recipe.support is not None:
        model.space.fit(torch.from_numpy(y))
    elif not head.counts:
        # In float64 and outside of the model, so that large targets keep their digits.
        mean = y.mean(0)
        space = OutputSpace(outputs).double().fit(torch.from_numpy(y - mean))
        loc, scale = mean + space.loc.numpy(), space.scale.numpy()
    head.start(torch.from_numpy((y - loc) / scale).float())
    return Fitted(model, loc, scale)


def build_model(recipe: Recipe, encoding: FeatureEncoding, outputs: int | None) -> BagModel:
    """A bag with random weights."""
    head = recipe.head()
    network = _network(recipe, encoding, outputs, head)
    return BagModel(encoding, network, head, outputs, recipe.support)


def _network(
    recipe: Recipe, encoding: FeatureEncoding, outputs: int | None, head: Head
) -> Conditioner:
    s, width = recipe.settings, encoding.width
    options: dict[str, Any] = {
        "hidden": s.hidden,
        "activation": s.activation,
        "dropout": s.dropout,
        "skip": s.skip,
        "sees": _seen_inputs(s, encoding),
    }
    if outputs is not None and recipe.dependence == "gaussian":
        return GaussianChain(s.members, outputs, width, **options)
    alone = recipe.dependence != "flow"
    return BagMLP(s.members, outputs or 1, width, head.n_params, independent=alone, **options)


def _seen_inputs(settings: Settings, encoding: FeatureEncoding) -> Tensor | None:
    """Which inputs each member sees, (K, width), or None if all see everything."""
    unbinned = encoding.unbinned
    if not settings.n_unbinned() or bool(unbinned.all()):
        return None
    sees = torch.ones(settings.members, encoding.width, dtype=torch.bool)
    sees[-settings.n_unbinned() :] = unbinned
    return sees


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
        settings.n_steps(),
        batch,
        settings.learning_rate,
        settings.weight_decay,
        evaluations=evaluations,
        patience=max(1, round(settings.patience * evaluations)),
    )
