"""The one training loop: weighted windows, one-cycle learning rate, best held-out weights.

Under torchrun every process draws its own windows, gradients are averaged by
DistributedDataParallel, and all processes end with the same weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..schedule import one_cycle
from .distributed import agree, is_distributed, rank, world_size
from .network import ForecastNetwork
from .rollout import rolled_losses
from .windows import Batch, Index, WindowShape, WindowSource

__all__ = ["History", "Plan", "train", "scaled_loss"]

# Windows from which the start of the linear base is estimated.
START_WINDOWS = 512
# Windows that judge the weights during training.
JUDGES = 512
CLIP = 5.0
# Share of the steps that learn one step from the truth before paths are rolled out.
ONE_STEP = 0.5


@dataclass(frozen=True)
class Plan:
    """How a network learns.

    Attributes:
        steps: optimiser steps.
        batch_size: windows per step and process.
        learning_rate: the highest rate of the cycle.
        weight_decay: of AdamW.
        averaging: how much of the past the moving average of the weights keeps per step.
        evaluations: how often held-out windows are scored.
        patience: evaluations without improvement after which training stops.
        unknown: share of windows whose series is hidden, so that new series can be forecast.
        blind: share of windows whose horizon is forecast at once, not step by step.
        flat: keep the rate constant instead.
        fresh: begin with the least-squares start of the linear base; otherwise go on.
        one_step: share of the steps after which outputs that learn from rolled-out paths do so.
        seed: of the windows and the noise.
    """

    steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    averaging: float
    evaluations: int
    patience: int
    unknown: float
    blind: float
    flat: bool
    seed: int
    fresh: bool = True
    one_step: float = ONE_STEP


@dataclass
class History:
    """What happened: held-out losses and the step of each."""

    steps: list[int] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    best: float = math.inf
    interrupted: bool = False

    @property
    def best_step(self) -> int:
        """The step whose weights are kept."""
        if not self.held_out:
            return self.steps[-1] if self.steps else 0
        return self.steps[int(np.argmin(self.held_out))]


def scaled_loss(network: ForecastNetwork, losses: Tensor, batch: Batch) -> Tensor:
    """Mean over the steps that count of the loss of values divided by their scale.

    Args:
        network: says whether its loss grows with the unit of what it scores.
        losses: (B, L) of standardised values.
        batch: the windows.
    """
    weight = batch.mask
    if network.output.homogeneous:
        weight = weight * batch.spread[:, None]
    return (losses * weight).sum() / weight.sum().clamp_min(1e-12)


def train(
    network: ForecastNetwork,
    source: WindowSource,
    windows: tuple[Index, Index, NDArray[np.float64]],
    held: tuple[Index, Index],
    plan: Plan,
    device: torch.device,
    progress: Callable[[int, float], None] | None = None,
) -> History:
    """Train in place; the network ends with the averaged weights that served held-out windows best.

    Args:
        network: what to train.
        source: where windows come from.
        windows: series, origins and weights of the windows to learn from.
        held: series and origins of the windows that judge; may be empty.
        plan: see `Plan`.
        device: where to train.
        progress: called with the number of steps done and the best held-out loss.
    """
    draw = _Draw(source, windows, plan, device)
    network.to(device)
    if plan.fresh:
        network.start_from(draw(START_WINDOWS), source.shape.centred)
    objective = Objective(network, source.shape, plan.blind > 0)
    walks = network.output.paths > 0
    model: nn.Module = objective
    if is_distributed():
        model = nn.parallel.DistributedDataParallel(objective)
    parameters = list(network.parameters())
    optimiser = torch.optim.AdamW(
        parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, foreach=True
    )
    watch = _Watch(objective, source, held, device)
    average = [p.detach().clone() for p in parameters]
    every = max(1, plan.steps // plan.evaluations)
    network.train()
    try:
        for step in range(plan.steps):
            share = 1.0 if plan.flat else one_cycle(step, plan.steps)
            optimiser.param_groups[0]["lr"] = plan.learning_rate * share
            walking = walks and step >= plan.one_step * plan.steps
            batch = draw(plan.batch_size, walking)
            loss = scaled_loss(network, model(batch, walking), batch)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, CLIP, foreach=True)
            optimiser.step()
            keep = min(plan.averaging, (step + 1) / (step + 10))
            torch._foreach_lerp_(average, [p.detach() for p in parameters], 1.0 - keep)
            if (step + 1) % every == 0 or step + 1 == plan.steps:
                stale = watch.look(step + 1, parameters, average)
                if progress is not None:
                    progress(step + 1, watch.history.best)
                if stale >= plan.patience:
                    break
    except KeyboardInterrupt:
        watch.history.interrupted = True
        warnings.warn("training was interrupted; the best weights so far are kept.", stacklevel=2)
    watch.restore(parameters, average)
    network.eval()
    for p in parameters:
        p.grad = None
    return watch.history


class Objective(nn.Module):
    """The loss of every step of a batch, as a module that several processes can share.

    Args:
        network: what is trained.
        shape: of the windows.
        direct: whether the horizon is also forecast at once.
    """

    def __init__(self, network: ForecastNetwork, shape: WindowShape, direct: bool) -> None:
        super().__init__()
        self.network, self.shape, self.direct = network, shape, direct

    def forward(self, batch: Batch, walking: bool = False) -> Tensor:
        """Losses (B, L). When walking, windows are blind, and every second one, or all of them if
        nothing is forecast at once, learns from rolled-out paths."""
        if not walking:
            losses: Tensor = self.network(batch)
            return losses
        rows = torch.arange(len(batch.scale), device=batch.scale.device)
        walkers = (rows % 2 == 1) | (not self.direct)
        shape, paths = self.shape, self.network.output.paths
        chosen = Batch(*(t[walkers] for t in batch))
        parts = [rolled_losses(self.network, chosen, shape.context, shape.lags, paths)]
        if self.direct:
            parts.append(self.network(Batch(*(t[~walkers] for t in batch))))
        order = torch.cat([rows[walkers], rows[~walkers]]).argsort()
        return torch.cat(parts)[order]


class _Draw:
    """Random windows, more of those with a large weight; some of them without their name."""

    def __init__(
        self,
        source: WindowSource,
        windows: tuple[Index, Index, NDArray[np.float64]],
        plan: Plan,
        device: torch.device,
    ) -> None:
        self.source, self.device, self.plan = source, device, plan
        self.series, self.origins, weights = windows
        self.edges = np.cumsum(weights / weights.sum())
        self.rng = np.random.default_rng([plan.seed, rank()])

    def __call__(self, size: int, walking: bool = False) -> Batch:
        # A lattice instead of independent draws: fewer repetitions of the heaviest windows.
        u = (np.arange(size) + self.rng.random(size)) / size
        chosen = np.minimum(np.searchsorted(self.edges, u), len(self.edges) - 1)
        blind = (self.rng.random(size) < self.plan.blind) | walking
        batch = self.source.batch(self.series[chosen], self.origins[chosen], blind)
        hidden = torch.from_numpy(self.rng.random(size) < self.plan.unknown)
        ids = batch.ids.masked_fill(hidden, self.source.shape.unknown)
        return batch._replace(ids=ids).to(self.device)


class _Watch:
    """Scores the averaged weights on held-out windows and remembers the best ones."""

    def __init__(
        self,
        objective: Objective,
        source: WindowSource,
        held: tuple[Index, Index],
        device: torch.device,
    ) -> None:
        self.objective, self.history = objective, History()
        self.network = objective.network
        self.walks = self.network.output.paths > 0
        self.centred = source.shape.centred
        self.saved: list[Tensor] | None = None
        self.stale = 0
        self.batches: list[Batch] = []
        if len(held[0]):
            scales = source.scales(*held)
            usable = np.flatnonzero(np.isfinite(scales))
            pick = usable[np.linspace(0, len(usable) - 1, min(JUDGES, len(usable))).astype(int)]
            for part in np.array_split(pick, max(1, len(pick) // 128)):
                half = (np.arange(len(part)) % 2 == 0) & (source.shape.marginals != "rolled")
                half |= self.walks
                self.batches.append(source.batch(held[0][part], held[1][part], half).to(device))

    @torch.no_grad()
    def look(self, step: int, parameters: list[nn.Parameter], average: list[Tensor]) -> int:
        """Evaluate the averaged weights; return how many evaluations ago they were best."""
        self.history.steps.append(step)
        if not self.batches:
            return 0
        current = [p.detach().clone() for p in parameters]
        _assign(parameters, average)
        self.network.eval()
        state = torch.random.get_rng_state()
        torch.manual_seed(0)  # the same levels at every evaluation
        total = weight = 0.0
        for batch in self.batches:
            losses = self.objective(batch, self.walks)
            # Centred windows count alike: the large levels of some series say nothing.
            size = batch.spread if self.centred else batch.scale * batch.spread
            mask = batch.mask * size[:, None]
            total += float((losses * mask).sum())
            weight += float(mask.sum())
        torch.random.set_rng_state(state)
        self.network.train()
        _assign(parameters, current)
        score = agree(total / max(weight, 1e-30))
        self.history.held_out.append(score)
        if score < self.history.best:
            self.history.best, self.stale = score, 0
            self.saved = [a.clone() for a in average]
        else:
            self.stale += 1
        return self.stale

    def restore(self, parameters: list[nn.Parameter], average: list[Tensor]) -> None:
        """Use the best weights, the averaged ones if nothing judged."""
        _assign(parameters, self.saved or average)


@torch.no_grad()
def _assign(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    for p, v in zip(parameters, values, strict=True):
        p.copy_(v)


def steps_per_process(steps: int) -> int:
    """Steps for which all processes together see as many windows as one would."""
    return max(1, math.ceil(steps / world_size()))
