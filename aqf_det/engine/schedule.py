"""The learning rate of a run in two stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import PARAM_SCHEDULERS


@PARAM_SCHEDULERS.register_module()
class RestartedMultiStepLR(LRSchedulerMixin, _ParamScheduler):
    """Multiply the rate by ``gamma`` at each milestone; return to the initial rate at each restart.

    A function of the epoch alone, so a resumed run or one that starts at a later epoch has the rate
    of an uninterrupted one.

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
        """Rate at an epoch relative to the initial one."""
        begun = max((r for r in self.restarts if r <= epoch), default=0)
        return self.gamma ** sum(begun < m <= epoch for m in self.milestones)

    def _get_value(self) -> list[float]:
        return [value * self.factor(self.last_step) for value in self.base_values]
