"""What every head whose boxes are distributions has beside its own layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmdet.structures import SampleList
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ..calibration import BoxCalibration
from .box_branch import BoxBranch
from .checkpoint_kind import CheckpointGuard
from .flow_options import FlowOptions
from .mc_dropout import check_passes
from .prediction import Detections, finish
from .prediction_options import PredictionOptions


class FlowHead(CheckpointGuard):
    """Mixin: flow branch, dropout in front of it, calibration, stage, and how results are returned.

    Attributes:
        flow: The options of the distribution.
        branch: The flow branch, None for a head that only has its own Gaussian.
        dropout: Applied to the features that the branch reads.
        calibration: What was learned from held-out boxes.
        stage: 1 or 2; part of the weights.
        test_cfg: See :class:`~aqf_det.models.prediction_options.PredictionOptions`.
    """

    stage: Tensor
    test_cfg: Mapping[str, Any]

    def add_flow(
        self, flow: FlowOptions, channels: Sequence[int], slots: int, dropout: float
    ) -> None:
        """Add all of it.

        Args:
            flow: The options of the distribution.
            channels: Features per box on each level.
            slots: Boxes that share features.
            dropout: Probability of dropout.
        """
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}.")
        self.flow = flow
        # A wrong option is refused here and not at the first validation, hours later.
        check_passes(self.options.mc_passes, dropout)
        self.dropout = nn.Dropout(dropout)
        self.branch = BoxBranch(channels, slots, flow) if flow.branch else None
        self.calibration = BoxCalibration()
        self.guard_checkpoints(flow.signature)
        self.register_buffer("stage", torch.tensor(1, dtype=torch.uint8))

    @property
    def options(self) -> PredictionOptions:
        """What ``test_cfg`` asks for."""
        return PredictionOptions.parse(self.test_cfg)

    def branch_loss(
        self,
        features: Sequence[Tensor],
        level: Tensor,
        slot: Tensor,
        mean: Tensor,
        sigma: Tensor,
        frame: Tensor,
        targets: Tensor,
        weights: Tensor,
    ) -> dict[str, Tensor]:
        """Stage-2 loss: the weighted mean of the branch's objective over P boxes.

        Args:
            features: Per level (P_l, c_l), after dropout.
            level: (P,), and slot (P,).
            slot: See level.
            mean: (1, P, 4) point boxes.
            sigma: (1, P, 4) the standard deviations the flow starts from.
            frame: (P, 4) the rectangles of the pictures.
            targets: (P, 4) ground truths.
            weights: (P,).
        """
        if self.branch is None:
            raise RuntimeError("stage 2 needs a flow branch; this head has none.")
        features = [f[None] for f in features]
        loss = self.branch.loss(features, level, slot, mean, sigma, frame, targets)
        total = (loss * weights).sum() / weights.sum().clamp_min(1.0)
        # An image without objects must still touch every parameter, or distributed training hangs.
        return {"loss_flow": total + 0.0 * sum(p.sum() for p in self.branch.parameters())}

    def finish(
        self,
        found: Sequence[Detections],
        samples: SampleList,
        options: PredictionOptions,
        rescale: bool,
    ) -> list[InstanceData]:
        """What is returned about detections; the levels are written into the samples' metainfo."""
        for sample in samples:
            sample.set_metainfo({"quantile_levels": options.levels})
        return [
            finish(detections, sample.metainfo, options, self.calibration, rescale)
            for detections, sample in zip(found, samples, strict=True)
        ]
