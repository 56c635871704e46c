"""What a run tells while it goes on: short lines, and pictures of validation images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mmdet.engine.hooks import DetVisualizationHook
from mmengine.registry import HOOKS, LOG_PROCESSORS
from mmengine.runner import LogProcessor

from ..datasets.transforms import CorruptSampleError, LoadCheckedImage

#: What ``BoxUncertaintyMetric`` shows as a table as well; the line of an epoch keeps these.
HEADLINES = ("uncertainty/n_pairs", "uncertainty/crps", "uncertainty/calibration_mae")


@LOG_PROCESSORS.register_module()
class BriefLogProcessor(LogProcessor):
    """mmengine's log lines without the hundred scalars that tables above them show.

    Backends such as TensorBoard still receive all of them.
    """

    def get_log_after_epoch(self, *args: Any, **kwargs: Any) -> tuple[dict, str]:
        """Scalars for the backends, and the line of a validation or test epoch."""
        scalars, line = super().get_log_after_epoch(*args, **kwargs)
        return scalars, re.sub(
            r"  (uncertainty/\S+): \S+", lambda m: m[0] if m[1] in HEADLINES else "", line
        )


@HOOKS.register_module()
class CheckedVisualizationHook(DetVisualizationHook):
    """mmdet's pictures during validation and test, without those of images that cannot be read.

    Data sets name damaged files and go on; so does this hook.
    """

    def after_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any, outputs: Sequence[Any]
    ) -> None:
        """Every ``interval`` iterations draw the first image of the batch."""
        due = self.draw and (runner.iter + batch_idx) % self.interval == 0
        if due and _readable(outputs[0].img_path):
            super().after_val_iter(runner, batch_idx, data_batch, outputs)

    def after_test_iter(
        self, runner: Any, batch_idx: int, data_batch: Any, outputs: Sequence[Any]
    ) -> None:
        """Draw every image of the batch."""
        if self.draw:
            good = [sample for sample in outputs if _readable(sample.img_path)]
            super().after_test_iter(runner, batch_idx, data_batch, good)


def _readable(path: str) -> bool:
    try:
        LoadCheckedImage().transform({"img_path": path})
    except CorruptSampleError:
        return False
    return True
