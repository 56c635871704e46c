"""Training a bag: mini-batches per member, one-cycle learning rate, best held-out weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..schedule import one_cycle
from .encoding import FeatureEncoding
from .model import BagModel
from .optimiser import BagAdamW

__all__ = ["History", "Rows", "Schedule", "Split", "padded", "train"]

# Encoded inputs are kept, not recomputed, while they are smaller than this many numbers.
KEEP_ENCODED = 50_000_000
# Held-out rows per member behind one evaluation.
MAX_HELD = 2048


class Rows:
    """Training rows as the model sees them.

    Args:
        encoding: fitted encoding.
        rows: standardised rows (n, p), see `FeatureEncoding.standardise`.
        y: targets (n,) or (n, d).
        weights: (n,), positive.
    """

    def __init__(self, encoding: FeatureEncoding, rows: Tensor, y: Tensor, weights: Tensor) -> None:
        self.y, self.weights = y, weights
        self._encoding = encoding
        self._encoded = len(rows) * max(1, encoding.width) <= KEEP_ENCODED
        self._rows = encoding(rows) if self._encoded else rows

    def __len__(self) -> int:
        return len(self._rows)

    def inputs(self, index: Tensor) -> Tensor:
        """Encoded inputs (*index.shape, width)."""
        rows = self._rows[index]
        return rows if self._encoded else self._encoding(rows)


@dataclass(frozen=True)
class Split:
    """Which rows each member learns from and which it is judged by: K index tensors each."""

    learn: list[Tensor]
    held: list[Tensor]

    def to(self, device: torch.device) -> Split:
        """The same on another device."""
        return Split([r.to(device) for r in self.learn], [r.to(device) for r in self.held])


@dataclass(frozen=True)
class Schedule:
    """How long, how fast and on how many rows at a time a bag learns.

    Args:
        steps: number of optimiser steps.
        batch_size: rows per member and step.
        learning_rate: the highest rate of the cycle.
        weight_decay: of AdamW.
        warm_up: share of the steps in which the rate rises.
        evaluations: how often held-out rows are scored during training.
        patience: evaluations without any member improving after which training stops.
        averaging: how much of the past the moving average of the weights keeps per step.
        flat: keep the rate constant instead.
    """

    steps: int
    batch_size: int = 128
    learning_rate: float = 1e-2
    weight_decay: float = 1e-2
    warm_up: float = 0.15
    evaluations: int = 60
    patience: int = 30
    averaging: float = 0.98
    flat: bool = False

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        share = 1.0 if self.flat else one_cycle(step, self.steps, self.warm_up)
        return self.learning_rate * share


@dataclass
class History:
    """What happened: held-out losses (evaluations, K) and the step of each evaluation."""

    steps: list[int] = field(default_factory=list)
    held_out: list[list[float]] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    interrupted: bool = False


def train(
    model: BagModel,
    data: Rows,
    split: Split,
    schedule: Schedule,
    progress: Callable[[int, float], None] | None = None,
) -> History:
    """Fit all members at once; each ends with the weights that served its held-out rows best.

    Args:
        model: what to train, in place.
        data: the rows.
        split: who learns from what; members without held-out rows keep their last weights.
        schedule: see `Schedule`.
        progress: called with the number of steps done and the mean held-out loss.
    """
    optimiser = BagAdamW(model.network, schedule.weight_decay, schedule.averaging)
    watch = _Watch(model, data, split.held, optimiser)
    batches = _batches(split.learn, schedule.batch_size, data.y.device)
    every = max(1, schedule.steps // schedule.evaluations)
    model.train()
    try:
        for step in range(schedule.steps):
            index, present = next(batches)
            weight = data.weights[index] * present
            losses = model.loss(data.inputs(index), data.y[index])
            loss = ((losses * weight).sum(-1) / weight.sum(-1)).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step(schedule.rate(step))
            if (step + 1) % every == 0 or step + 1 == schedule.steps:
                stale = watch.look(step + 1)
                if progress is not None:
                    progress(step + 1, watch.mean)
                if stale >= schedule.patience:
                    break
    except KeyboardInterrupt:
        watch.history.interrupted = True
        warnings.warn("training was interrupted; the best weights so far are kept.", stacklevel=2)
    watch.restore()
    model.eval()
    for p in model.network.parameters():
        p.grad = None
    return watch.history


class _Watch:
    """Scores members on their held-out rows and remembers their best weights."""

    def __init__(
        self, model: BagModel, data: Rows, held: list[Tensor], optimiser: BagAdamW
    ) -> None:
        self.model, self.data, self.optimiser = model, data, optimiser
        self.history = History()
        self.watching = min(len(rows) for rows in held) > 0
        if self.watching:
            self.index, present = padded([_thin(rows, MAX_HELD) for rows in held])
            self.weight = data.weights[self.index] * present
        self.best = torch.full((len(held),), math.inf, device=data.y.device)
        self.saved = optimiser.average.clone()
        self.stale = 0

    @property
    def mean(self) -> float:
        return float(self.best.mean())

    @torch.no_grad()
    def look(self, step: int) -> int:
        """Evaluate the averaged weights; return how many evaluations ago any member improved."""
        self.history.steps.append(step)
        if not self.watching:
            return 0
        current = self.optimiser.weights.clone()
        self.optimiser.weights.copy_(self.optimiser.average)
        self.model.eval()
        losses = self.model.loss(self.data.inputs(self.index), self.data.y[self.index], exact=True)
        self.model.train()
        self.optimiser.weights.copy_(current)
        score = (losses * self.weight).sum(-1) / self.weight.sum(-1)
        self.history.held_out.append(score.tolist())
        better = score < self.best
        self.best = torch.where(better, score, self.best)
        self.saved = torch.where(better.unsqueeze(1), self.optimiser.average, self.saved)
        self.stale = 0 if bool(better.any()) else self.stale + 1
        return self.stale

    @torch.no_grad()
    def restore(self) -> None:
        """Give every member its best weights."""
        self.history.best = self.best.tolist()
        found = self.best.isfinite().unsqueeze(1)
        self.optimiser.weights.copy_(torch.where(found, self.saved, self.optimiser.average))


def _batches(
    learn: list[Tensor], batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (index, present) pairs of shape (K, B); `present` is 0 for padding."""
    longest = max(len(rows) for rows in learn)
    if longest <= batch_size:
        index, present = padded(learn)
        while True:
            yield index, present
    least = min(len(rows) for rows in learn)
    per_epoch = max(1, least // batch_size)
    size = min(batch_size, least)
    ones = torch.ones(len(learn), size, device=device)
    while True:
        order = torch.stack(
            [rows[torch.randperm(len(rows))[: per_epoch * size].to(rows.device)] for rows in learn]
        )
        for part in torch.split(order, size, dim=1):
            yield part, ones


def padded(lists: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Index tensors of different lengths as one (K, longest), and 1 where an entry is real."""
    longest = max(len(rows) for rows in lists)
    index = torch.stack([torch.cat([r, r.new_zeros(longest - len(r))]) for r in lists])
    present = torch.stack([(torch.arange(longest) < len(r)).float() for r in lists])
    return index, present.to(index.device)


def _thin(rows: Tensor, most: int) -> Tensor:
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most).round().long().to(rows.device)]
