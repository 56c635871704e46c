"""The detector: mmdet's flow of data plus the two training stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmdet.models.detectors import SingleStageDetector
from mmdet.models.detectors.base import BaseDetector
from mmdet.registry import MODELS
from mmdet.structures import SampleList
from torch import Tensor

from .checkpoint_kind import CheckpointKindError
from .ensemble import Ensemble, Member
from .flow_head import FlowHead
from .fusion import fuse
from .prediction import Detections, rescored
from .prediction_options import PredictionOptions
from .views import View, mirrored_detections, mirrored_images

Metas = Sequence[Mapping[str, Any]]


class FlowDetection(BaseDetector):
    """Mixin: a detector that is trained in two stages and whose boxes are distributions.

    Stage 1 trains everything but the flow branch. In stage 2 the trunk is frozen bit for bit (no
    gradients, BatchNorm in evaluation mode whatever ``train()`` is told) and only the branch
    learns, so the point boxes, scores and labels of the two stages are the same.

    The stage is part of the weights: a resumed run continues where it stopped.

    Attributes:
        flow_head: The head that has the flow.
    """

    flow_head: FlowHead

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ensemble = Ensemble()

    @property
    def stage(self) -> int:
        """1 or 2."""
        return int(self.flow_head.stage)

    def set_stage(self, stage: int) -> None:
        """Enter a stage; stage 2 needs a head with a flow branch."""
        if stage not in (1, 2):
            raise ValueError(f"stage must be 1 or 2, got {stage}.")
        if stage == 2 and self.flow_head.branch is None:
            raise ValueError("this detector has no flow branch to train in stage 2.")
        self.flow_head.stage.fill_(stage)
        self.train(self.training)

    def require_trained_branch(self) -> None:
        """Refuse to evaluate a flow branch that stage 2 has not reached."""
        if self.flow_head.branch is not None and self.stage == 1:
            raise CheckpointKindError(
                "the flow branch is untrained: the checkpoint comes from stage 1; train stage 2 "
                "with load_from=CHECKPOINT, or use the Gaussian config."
            )

    def train(self, mode: bool = True) -> FlowDetection:
        """Set the mode; in stage 2 only the branch and the dropout before it ever train.

        mmengine calls this before every epoch, which is why freezing lives here and not in a hook.
        """
        super().train(mode)
        branch = self.flow_head.branch
        if self.stage == 2 and branch is not None:
            trained = {id(p) for p in branch.parameters()}
            for parameter in self.parameters():
                parameter.requires_grad_(id(parameter) in trained)
            for child in self.children():
                child.train(False)
            branch.train(mode)
            self.flow_head.dropout.train(mode)
        return self

    def extract_feat(self, batch_inputs: Tensor) -> tuple[Tensor, ...]:
        """Pyramid maps; without a graph in stage 2."""
        # Without gradients the stage makes no difference; not asking for it keeps export possible.
        if not torch.is_grad_enabled() or self.stage == 1:
            return super().extract_feat(batch_inputs)
        with torch.no_grad():
            return super().extract_feat(batch_inputs)

    def look(
        self,
        maps: Sequence[Tensor],
        samples: SampleList,
        options: PredictionOptions,
        rescale: bool,
    ) -> list[Detections]:
        """What this detector alone finds in every image, given the pyramid maps.

        Args:
            maps: Of the batch.
            samples: With the metainfo of the images.
            options: How to predict.
            rescale: The pixels in which a stock detector suppresses.
        """
        raise NotImplementedError

    def views(self, batch_inputs: Tensor, metas: Metas, flip: bool) -> list[View]:
        """The images and, with ``flip``, their mirror images, each with its pyramid maps."""
        views = [View(batch_inputs, self.extract_feat(batch_inputs), False)]
        if flip:
            mirrored = mirrored_images(batch_inputs, metas)
            views.append(View(mirrored, self.extract_feat(mirrored), True))
        return views

    def detect(
        self, batch_inputs: Tensor, batch_data_samples: SampleList, rescale: bool = True
    ) -> list[Detections]:
        """What all members and views find in every image, in network-input pixels, uncalibrated."""
        options = self.flow_head.options
        metas = [sample.metainfo for sample in batch_data_samples]
        views = self.views(batch_inputs, metas, options.flip)
        members = self._ensemble.members(self, options.ensemble)
        for member in members:
            member.detector.flow_head.test_cfg = self.flow_head.test_cfg
        return detect_in_views(views, batch_data_samples, members, options, rescale)

    def predict(
        self, batch_inputs: Tensor, batch_data_samples: SampleList, rescale: bool = True
    ) -> SampleList:
        """Detections with their distributions."""
        found = self.detect(batch_inputs, batch_data_samples, rescale)
        results = self.flow_head.finish(found, batch_data_samples, self.flow_head.options, rescale)
        return self.add_pred_to_datasample(batch_data_samples, results)


@MODELS.register_module()
class FlowDetector(FlowDetection, SingleStageDetector):
    """The detector of a head that has its own Gaussian and flow (``FlowYOLOHead``)."""

    @property
    def flow_head(self) -> FlowHead:  # type: ignore[override]
        """The dense head."""
        return self.bbox_head

    def loss(self, batch_inputs: Tensor, batch_data_samples: SampleList) -> dict[str, Any]:
        """Losses of the current stage."""
        return self.bbox_head.loss(self.extract_feat(batch_inputs), batch_data_samples)

    def look(
        self,
        maps: Sequence[Tensor],
        samples: SampleList,
        options: PredictionOptions,
        rescale: bool,
    ) -> list[Detections]:
        """What the dense head finds."""
        return self.bbox_head.detect(maps, samples, options)


def detect_in_views(
    views: Sequence[View],
    samples: SampleList,
    members: Sequence[Member],
    options: PredictionOptions,
    rescale: bool = True,
) -> list[Detections]:
    """What several members find in several views of a batch, one answer per image."""
    answers = []
    for view in views:
        for member in members:
            own = view.maps if member.shares_trunk else member.detector.extract_feat(view.images)
            found = member.detector.look(own, samples, options, rescale)
            if view.flipped:
                found = [
                    mirrored_detections(detections, sample.metainfo)
                    for detections, sample in zip(found, samples, strict=True)
                ]
            answers.append(found)
    fused = [fuse(found, options) for found in zip(*answers, strict=True)]
    return [rescored(found) for found in fused] if options.rescore else fused
