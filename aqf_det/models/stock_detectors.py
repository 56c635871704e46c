"""Stock mmdet detectors with a flow beside them.

Their parts and the names of their weights are mmdet's, so a stock checkpoint is loaded as it is;
their boxes, scores and labels are those of the stock detector bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmdet.models.dense_heads import ATSSHead, FCOSHead, GFLHead
from mmdet.models.detectors import SingleStageDetector, TwoStageDetector
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.registry import MODELS
from mmdet.structures import SampleList
from mmdet.structures.bbox import bbox2roi, get_box_tensor
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch import Tensor, nn

from .assigner import picture_frames
from .checkpoint_kind import CheckpointKindError
from .detector import FlowDetection
from .flow_bbox_head import FlowBBoxHead
from .flow_head import FlowHead
from .mc_dropout import check_passes
from .prediction import Detections
from .prediction_options import PredictionOptions
from .stock_flow import BesideStock, PooledFlowHead

#: Dense heads that predict the distances of the sides from a point, and their subclasses; RTMDet's
#: heads are ATSS heads to mmdet.
DISTANCE_HEADS = (FCOSHead, ATSSHead, GFLHead)


class StockFlowDetection(FlowDetection):
    """Mixin: stage 1 is the stock detector's training, stage 2 that of the flow beside it."""

    flow_head: BesideStock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_load_state_dict_pre_hook(_check_stock_weights)

    def stock_answers(
        self,
        maps: Sequence[Tensor],
        samples: SampleList,
        test_cfg: ConfigDict,
        rescale: bool,
    ) -> list[InstanceData]:
        """What the stock detector returns for every image."""
        raise NotImplementedError

    def box_features(self, maps: Sequence[Tensor], rois: Tensor) -> Tensor:
        """Features (N, C) of boxes (N, 5): image, x1, y1, x2, y2 in network-input pixels."""
        raise NotImplementedError

    def loss(self, batch_inputs: Tensor, batch_data_samples: SampleList) -> dict[str, Any]:
        """The stock losses, in stage 2 that of the flow."""
        self.flow_head.calibration.refuse_training()
        if self.stage == 1:
            return super().loss(batch_inputs, batch_data_samples)
        boxes, frame, targets, features = self.training_boxes(batch_inputs, batch_data_samples)
        return self.flow_head.flow_loss(features, boxes, frame, targets)

    @torch.no_grad()
    def training_boxes(
        self, batch_inputs: Tensor, samples: SampleList
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Kept boxes (P, 4), their frames (P, 4), true boxes (P, 4) and features (P, C)."""
        least = max(self.flow_head.test_cfg.get("score_thr", 0.0), self.flow_head.min_score)
        test_cfg = ConfigDict({**self.flow_head.test_cfg, "score_thr": least})
        # As at test time, whatever precision the branch is trained in.
        with torch.autocast(batch_inputs.device.type, enabled=False):
            maps = self.extract_feat(batch_inputs)
            answers = self.stock_answers(maps, samples, test_cfg, rescale=False)
            pairs = map(self.flow_head.training_pairs, answers, samples)
            boxes, targets = zip(*pairs, strict=True)
            features = self.box_features(maps, bbox2roi(boxes))
        counts = torch.tensor([len(b) for b in boxes], device=batch_inputs.device)
        frame = picture_frames(samples, torch.cat(boxes)).repeat_interleave(counts, 0)
        return torch.cat(boxes), frame, torch.cat(targets), features

    def look(
        self,
        maps: Sequence[Tensor],
        samples: SampleList,
        options: PredictionOptions,
        rescale: bool,
    ) -> list[Detections]:
        """What the stock detector finds, with distributions."""
        answers = self.stock_answers(maps, samples, ConfigDict(self.flow_head.test_cfg), rescale)
        boxes = [
            _network_pixels(get_box_tensor(answer.bboxes), sample.metainfo, rescale)
            for answer, sample in zip(answers, samples, strict=True)
        ]
        features = self.box_features(maps, bbox2roi(boxes)).split([len(b) for b in boxes])
        frames = picture_frames(samples, features[0])
        return [
            Detections(
                box,
                answer.scores,
                answer.labels,
                self.flow_head.distribution(values, box, frame, options),
                None if rescale and _is_shifted(sample.metainfo) else answer,
            )
            for answer, box, values, frame, sample in zip(
                answers, boxes, features, frames, samples, strict=True
            )
        ]


@MODELS.register_module()
class FlowSingleStageDetector(StockFlowDetection, SingleStageDetector):
    """A dense detector of the FCOS, ATSS, GFL or RTMDet family and a flow beside it.

    Args:
        *args: As for mmdet's detector.
        flow_head: Options of :class:`~aqf_det.models.stock_flow.PooledFlowHead`, such as
            ``dict(flow=dict(kind="quantile", transformer="spline"))``.
        **kwargs: As for mmdet's detector.
    """

    flow_head: PooledFlowHead

    def __init__(
        self, *args: Any, flow_head: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        head = self.bbox_head
        if not isinstance(head, DISTANCE_HEADS):
            names = ", ".join(kind.__name__ for kind in DISTANCE_HEADS)
            raise TypeError(
                f"FlowSingleStageDetector needs a head that predicts distances of sides, one of "
                f"{names} (RTMDet's heads are among them) or a subclass, got {type(head).__name__}."
            )
        strides = [int(stride[0]) for stride in head.prior_generator.strides]
        self.flow_head = PooledFlowHead(
            head.in_channels, strides, head.test_cfg or {}, **(flow_head or {})
        )

    def stock_answers(
        self,
        maps: Sequence[Tensor],
        samples: SampleList,
        test_cfg: ConfigDict,
        rescale: bool,
    ) -> list[InstanceData]:
        """What the stock head returns for every image."""
        self.bbox_head.test_cfg = test_cfg
        return self.bbox_head.predict(maps, samples, rescale=rescale)

    def box_features(self, maps: Sequence[Tensor], rois: Tensor) -> Tensor:
        """Pooled from the maps that the stock head reads."""
        return self.flow_head(maps, rois)


@MODELS.register_module()
class FlowTwoStageDetector(StockFlowDetection, TwoStageDetector):
    """mmdet's two-stage detector with a ``FlowBBoxHead`` in its RoI head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        roi, head = self.roi_head, getattr(self.roi_head, "bbox_head", None)
        if not isinstance(roi, StandardRoIHead) or not isinstance(head, FlowBBoxHead):
            raise TypeError(
                "FlowTwoStageDetector needs a StandardRoIHead with bbox_head of type FlowBBoxHead, "
                f"got {type(roi).__name__} with {type(head).__name__}."
            )
        head.test_cfg = roi.test_cfg
        check_passes(head.options.mc_passes, head.dropout.p)

    @property
    def flow_head(self) -> FlowHead:  # type: ignore[override]
        """The box head of the RoI head."""
        return self.roi_head.bbox_head

    def stock_answers(
        self,
        maps: Sequence[Tensor],
        samples: SampleList,
        test_cfg: ConfigDict,
        rescale: bool,
    ) -> list[InstanceData]:
        """What the RoI head returns for every image."""
        self.roi_head.test_cfg = test_cfg
        if samples[0].get("proposals", None) is None:
            proposals = self.rpn_head.predict(maps, samples, rescale=False)
        else:
            proposals = [sample.proposals for sample in samples]
        return self.roi_head.predict(maps, proposals, samples, rescale=rescale)

    def box_features(self, maps: Sequence[Tensor], rois: Tensor) -> Tensor:
        """Pooled at the boxes as the RoI head pools at proposals, through its shared layers."""
        roi = self.roi_head
        pooled = roi.bbox_roi_extractor(maps[: roi.bbox_roi_extractor.num_inputs], rois)
        if roi.with_shared_head:
            pooled = roi.shared_head(pooled)
        return roi.bbox_head.box_features(pooled)


def _network_pixels(boxes: Tensor, meta: Mapping[str, Any], rescaled: bool) -> Tensor:
    """Boxes that mmdet has divided by the scale factor, in network-input pixels again."""
    return boxes * boxes.new_tensor(meta["scale_factor"][:2]).repeat(2) if rescaled else boxes


def _is_shifted(meta: Mapping[str, Any]) -> bool:
    """Whether the image lies inside a letterbox, which mmdet's rescaling does not know."""
    top, _, left, _ = meta.get("pad_param", (0, 0, 0, 0))
    return bool(top or left)


def _check_stock_weights(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Refuse weights that would leave part of the detector untrained, which mmengine only logs."""
    for name, value in module.state_dict().items():
        # What stock checkpoints do not have; old ones have no counters of BatchNorm either.
        if ".branch." in name or ".calibration." in name:
            continue
        if name.endswith((".signature", ".stage", ".num_batches_tracked")):
            continue
        saved = state.get(prefix + name)
        if saved is None or saved.shape != value.shape:
            what = "lacks it" if saved is None else f"has shape {tuple(saved.shape)} there"
            raise CheckpointKindError(
                f"the config's detector has {name!r} of shape {tuple(value.shape)}, the checkpoint "
                f"{what}; use the config that the checkpoint was trained with, with its number of "
                "classes."
            )
