"""The learning rate of a run in two stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import PARAM_SCHEDULERS


class _EpochLR(LRSchedulerMixin, _ParamScheduler):
    """A rate that is the initial one times a function of the epoch alone.

    A resumed run, or one that starts at a later epoch, has the rate of an uninterrupted one. A
    checkpoint says how far training was; the shape of the schedule is that of the present config,
    so a run can be resumed with more epochs.
    """

    def factor(self, epoch: int) -> float:
        """Rate at an epoch relative to the initial one."""
        raise NotImplementedError

    def _get_value(self) -> list[float]:
        return [value * self.factor(self.last_step) for value in self.base_values]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at the epoch of a checkpoint."""
        progress = ("base_values", "last_step", "_global_step", "_last_value")
        super().load_state_dict({k: v for k, v in state_dict.items() if k in progress})


@PARAM_SCHEDULERS.register_module()
class RestartedMultiStepLR(_EpochLR):
    """Multiply the rate by ``gamma`` at each milestone; return to the initial rate at each restart.

    Args:
        optimizer: The wrapped optimizer.
        milestones: Epochs at which the rate falls.
        restarts: Epochs at which it is the initial one again.
        gamma: Factor.
        **kwargs: As for every mmengine scheduler (``begin, end, by_epoch, ...``).
    """

    def __init__(
        self,
        optimizer: Any,
        milestones: Sequence[int],
        restarts: Sequence[int] = (),
        gamma: float = 0.1,
        **kwargs: Any,
    ) -> None:
        self.milestones, self.restarts = sorted(milestones), sorted(restarts)
        self.gamma = gamma
        super().__init__(optimizer, **kwargs)

    def factor(self, epoch: int) -> float:
        begun = max((r for r in self.restarts if r <= epoch), default=0)
        return self.gamma ** sum(begun < m <= epoch for m in self.milestones)


@PARAM_SCHEDULERS.register_module()
class RestartedCosineLR(_EpochLR):
    """In each stage rise for ``warmup`` epochs, then fall along a cosine: for short trainings.

    Args:
        optimizer: The wrapped optimizer.
        starts: First epochs of the stages, beginning with 0.
        total: Epochs of all stages.
        peaks: Factor at the top of each stage.
        warmup: Epochs of the rise.
        final: Factor at the end of a stage relative to its top.
        **kwargs: As for every mmengine scheduler (``begin, end, by_epoch, ...``).
    """

    def __init__(
        self,
        optimizer: Any,
        starts: Sequence[int],
        total: int,
        peaks: Sequence[float] | None = None,
        warmup: int = 1,
        final: float = 0.01,
        **kwargs: Any,
    ) -> None:
        self.bounds = [*starts, total]
        self.peaks = list(peaks or [1.0] * len(starts))
        if self.bounds[0] != 0 or self.bounds != sorted(self.bounds):
            raise ValueError(f"starts must ascend from 0 to total, got {self.bounds}.")
        if len(self.peaks) != len(starts):
            raise ValueError(f"{len(starts)} stages need as many peaks, got {self.peaks}.")
        self.warmup, self.final = warmup, final
        super().__init__(optimizer, **kwargs)

    def factor(self, epoch: int) -> float:
        stage = max(i for i, start in enumerate(self.bounds[:-1]) if start <= epoch)
        done, length = epoch - self.bounds[stage], self.bounds[stage + 1] - self.bounds[stage]
        if done < self.warmup:
            return self.peaks[stage] * (done + 0.5) / (self.warmup + 0.5)
        share = min(1.0, (done - self.warmup) / max(1, length - self.warmup))
        fall = 0.5 * (1 + math.cos(math.pi * share))
        return self.peaks[stage] * (self.final + (1 - self.final) * fall)
