"""One run, two stages: train the detector, then the flow branch on the frozen detector."""

from __future__ import annotations

import warnings
from typing import Any

from mmengine.hooks import EMAHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..models.detector import FlowDetection


def detector_of(runner: Runner) -> FlowDetection:
    """The runner's detector without its distributed wrapper."""
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    if not isinstance(model, FlowDetection):
        raise TypeError(
            "training in two stages needs a FlowDetector, FlowSingleStageDetector or "
            f"FlowTwoStageDetector, got {type(model).__name__}."
        )
    return model


#: The detector as stage 1 left it, in the run's work dir; what ``load_from`` of other rows takes.
STAGE1_FILE = "stage1.pth"


@HOOKS.register_module()
class TwoStageHook(Hook):
    """Switches to stage 2 after ``stage1_epochs`` epochs and keeps the detector as ``stage1.pth``.

    A fresh run with ``load_from`` starts at stage 2: epoch counter and learning rate are advanced
    as if stage 1 had been run, so logs, checkpoint names and the schedule agree with a complete
    run. A detector without a branch has no stage 2; for it ``load_from`` only sets the first
    weights. A resumed run continues in the stage its checkpoint was saved in. With an ``EMAHook``
    the averaged weights become the frozen trunk.

    Args:
        stage1_epochs: Epochs of stage 1.
        skip_stage1: Whether ``load_from`` skips stage 1.
        stage2_dataloader: Config of the images the branch is trained on; those of stage 1 by
            default. A detector errs less on images it was trained on, so a branch that learns from
            others is better calibrated.
    """

    priority = "VERY_LOW"

    def __init__(
        self,
        stage1_epochs: int,
        skip_stage1: bool = True,
        stage2_dataloader: dict[str, Any] | None = None,
    ) -> None:
        if stage1_epochs < 0:
            raise ValueError(f"stage1_epochs must not be negative, got {stage1_epochs}.")
        self.stage1_epochs = stage1_epochs
        self.skip_stage1 = skip_stage1
        self.stage2_dataloader = stage2_dataloader

    def before_train(self, runner: Runner) -> None:
        """Skip stage 1 where its result has been loaded; forget a calibration."""
        calibration = detector_of(runner).flow_head.calibration
        if calibration.fitted:
            calibration.clear()
            runner.logger.warning(
                "the calibration of the loaded checkpoint is dropped: it does not fit the weights "
                "that training will find; run tools/calibrate.py afterwards"
            )
        loop = runner.train_loop
        if detector_of(runner).flow_head.branch is None:
            if loop.max_epochs > self.stage1_epochs:
                raise ValueError(
                    f"train_cfg.max_epochs={loop.max_epochs} reaches beyond stage 1 "
                    f"(stage1_epochs={self.stage1_epochs}), but this detector has no flow branch "
                    "for a stage 2; make both numbers equal or give the head a flow."
                )
            return
        fresh = runner.epoch == 0 and not runner._resume
        if fresh and self.stage1_epochs == 0 and not runner._load_from:
            raise ValueError(
                "stage1_epochs=0 trains the flow on a detector that is given: set "
                "load_from=CHECKPOINT."
            )
        if not (fresh and self.skip_stage1 and runner._load_from):
            return
        runner.logger.info(
            f"stage 1 is taken from {runner._load_from}; training starts with stage 2 at epoch "
            f"{self.stage1_epochs + 1} of {loop.max_epochs}"
        )
        loop._epoch = self.stage1_epochs
        loop._iter = self.stage1_epochs * len(loop.dataloader)
        with warnings.catch_warnings():
            # Meant for those who forget the optimizer; here its steps lie in the loaded weights.
            warnings.filterwarnings("ignore", message="Detected call of `scheduler.step")
            for scheduler in runner.param_schedulers or []:
                for _ in range(self.stage1_epochs if scheduler.by_epoch else loop._iter):
                    scheduler.step()

    def before_train_epoch(self, runner: Runner) -> None:
        """Enter stage 2 when its first epoch begins."""
        detector = detector_of(runner)
        if runner.epoch < self.stage1_epochs:
            return
        if self.stage2_dataloader is not None:
            runner.train_loop.dataloader = runner.build_dataloader(
                self.stage2_dataloader, seed=runner.seed
            )
            self.stage2_dataloader = None
        if detector.stage == 2:
            return
        # Checkpoints are thinned out, and other branches may want to start here.
        runner.save_checkpoint(
            runner.work_dir, STAGE1_FILE, save_optimizer=False, save_param_scheduler=False
        )
        averages = [hook for hook in runner.hooks if isinstance(hook, EMAHook)]
        for hook in averages:
            if hook._ema_started(runner):
                hook.src_model.load_state_dict(hook.ema_model.module.state_dict())
            else:
                hook.ema_model.module.load_state_dict(hook.src_model.state_dict())
        for hook in averages:
            # Integer buffers are not averaged, so the averaged copy has to be told.
            hook.ema_model.module.flow_head.stage.fill_(2)
        detector.set_stage(2)
        # The losses of stage 1 would be repeated in every later line of the log.
        scalars = runner.message_hub.log_scalars
        for name in [n for n in scalars if n.startswith(("train/loss", "train/grad_norm"))]:
            del scalars[name]
        runner.logger.info("stage 2: the trunk is frozen, the flow branch is trained")
