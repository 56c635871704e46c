r"""Training a generative model: a fixed number of steps or of CPU seconds, interruptible.

The learning rate rises for a short while and falls along a cosine; a moving average of the weights
is what is evaluated and kept. Of all evaluations on the validation rows the best weights, by the
objective of the method itself, are returned.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...datasets.samples import Samples
from .models import GenerativeModel

__all__ = ["Schedule", "Training", "mean_by_parts", "train"]

# Validation rows behind every point of a curve.
VALIDATION_ROWS = 1000
BATCHES_AT_ONCE = 512
CLIP = 5.0


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a model learns.

    Attributes:
        steps: number of steps, unless `cpu_seconds` is given.
        cpu_seconds: CPU time of training, evaluations not counted.
        batch_size: rows per step.
        learning_rate: the highest one.
        weight_decay: of AdamW.
        averaging: share of the past that the average of the weights keeps per step.
        evaluations: points of the curve.
        keep: "best" for the best weights by validation rows, "last" for those at the end.
    """

    steps: int = 3000
    cpu_seconds: float | None = None
    batch_size: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    averaging: float = 0.995
    evaluations: int = 15
    keep: str = "best"

    def rate(self, done: float) -> float:
        """Learning rate when a share `done` of the training is over.

        Example:
            >>> Schedule(learning_rate=1.0).rate(0.5)
            0.5
        """
        return self.learning_rate * min(1.0, 0.05 + done / 0.03) * _cosine(done)


def _cosine(done: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, done))


@dataclass
class Training:
    """What happened.

    Attributes:
        steps: done so far.
        cpu_seconds: of training alone.
        curve: per evaluation the step, the CPU seconds, log-likelihood and CRPS on validation rows.
    """

    steps: int = 0
    cpu_seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)

    def best(self, objective: str) -> int:
        """Index of the best evaluation by the objective.

        Example:
            >>> curve = [{"log_likelihood": 1.0, "crps": 3.0}, {"log_likelihood": 2.0, "crps": 4.0}]
            >>> Training(curve=curve).best("nll"), Training(curve=curve).best("quantile")
            (1, 0)
        """
        if objective == "nll":
            values = [-point["log_likelihood"] for point in self.curve]
        else:
            values = [point["crps"] for point in self.curve]
        # NaN, a model that diverged, is never the best unless all are.
        return int(np.argmin(np.nan_to_num(values, nan=np.inf, posinf=np.inf, neginf=-np.inf)))


def train(
    model: GenerativeModel,
    data: Samples,
    schedule: Schedule,
    seed: int = 0,
    checkpoint: Path | None = None,
    report: Callable[[Training], None] | None = None,
) -> tuple[GenerativeModel, Training]:
    """Train a model of `build_model` and return the averaged weights in a copy of it.

    Args:
        model: what to train, in place.
        data: its training and validation rows are used.
        schedule: how long and how fast.
        seed: of the batches, the noise and the levels.
        checkpoint: file that every evaluation overwrites; training goes on from it if it exists.
        report: called after every evaluation.

    Returns:
        The trained model, and its history.
    """
    rows = torch.from_numpy(data.train)
    labels = None if data.labels is None else torch.from_numpy(data.labels[0])
    optimiser = torch.optim.AdamW(
        model.parameters(), weight_decay=schedule.weight_decay, betas=(0.9, 0.99), fused=True
    )
    average, best = copy.deepcopy(model), copy.deepcopy(model)
    history = Training()
    torch.manual_seed(seed)
    state: dict[str, Any] = {}
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
    if state.get("schedule") == asdict(schedule):
        for module, name in ((model, "model"), (average, "average"), (best, "best")):
            module.load_state_dict(state[name])
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        history = Training(**state["history"])
    begin, mark = history.cpu_seconds, time.process_time()
    done = _share_done(schedule, history)
    order: list[Tensor] = []
    while done < 1.0:
        # Batches of a block are drawn together; a block never crosses an evaluation.
        if not order:
            drawn = torch.randint(len(rows), (BATCHES_AT_ONCE, schedule.batch_size))
            order = list(drawn)
        batch = order.pop()
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate(done)
        loss = model.loss(rows[batch], None if labels is None else labels[batch])
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        if bool(norm.isfinite()):
            optimiser.step()
        history.steps += 1
        _blend(average, model, min(schedule.averaging, history.steps / (history.steps + 10)))
        history.cpu_seconds = begin + time.process_time() - mark
        done = _share_done(schedule, history)
        if done >= (len(history.curve) + 1) / schedule.evaluations or done >= 1.0:
            history.curve.append(_point(average, data, history))
            newest = len(history.curve) - 1
            if schedule.keep == "last" or history.best(model.objective) == newest:
                best.load_state_dict(average.state_dict())
            order = []
            if checkpoint is not None:
                _save(checkpoint, model, average, best, optimiser, history, schedule)
            if report is not None:
                report(history)
            begin, mark = history.cpu_seconds, time.process_time()
    return best, history


def _share_done(schedule: Schedule, history: Training) -> float:
    if schedule.cpu_seconds is not None:
        return history.cpu_seconds / schedule.cpu_seconds
    return history.steps / schedule.steps


@torch.no_grad()
def _blend(average: nn.Module, model: nn.Module, keep: float) -> None:
    for mean, new in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(new, 1.0 - keep)


def _point(average: GenerativeModel, data: Samples, history: Training) -> dict[str, float]:
    """The scores of the averaged weights on validation rows, without a trace in random numbers."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    rows = torch.from_numpy(data.validation[:VALIDATION_ROWS])
    labels = None
    if data.labels is not None:
        labels = torch.from_numpy(data.labels[1][:VALIDATION_ROWS])
    average.eval()
    scores = {
        "step": history.steps,
        "cpu_seconds": round(history.cpu_seconds, 2),
        "log_likelihood": mean_by_parts(average.log_prob, rows, labels),
        "crps": mean_by_parts(lambda r, c: average.crps(r, c, 32), rows, labels),
    }
    torch.set_rng_state(state)
    return scores


def mean_by_parts(
    score: Callable[[Tensor, Tensor | None], Tensor], rows: Tensor, labels: Tensor | None
) -> float:
    """Mean of a score over rows, a few thousand of them at a time."""
    size = max(1, 65_536 // rows.shape[1])
    total = 0.0
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        values = score(rows[part], None if labels is None else labels[part])
        total += float(values.double().mean()) * len(rows[part])
    return total / len(rows)


def _save(
    path: Path,
    model: nn.Module,
    average: nn.Module,
    best: nn.Module,
    optimiser: torch.optim.Optimizer,
    history: Training,
    schedule: Schedule,
) -> None:
    """Write everything that training needs to go on; never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    torch.save(
        {
            "model": model.state_dict(),
            "average": average.state_dict(),
            "best": best.state_dict(),
            "optimiser": optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "history": asdict(history),
            "schedule": asdict(schedule),
        },
        unfinished,
    )
    os.replace(unfinished, path)
