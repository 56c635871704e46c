"""A flow beside a stock head: it reads features of the boxes that the head keeps.

The stock head finds, scores and suppresses as ever. Afterwards features are pooled at each kept box
and a flow branch turns them into the distribution of the box's sides,

    x = x̂ + sigma r,    sigma = spread * (width, height of the box),    r ~ flow(features),

which increases in r side by side. Until it is trained, the distribution is N(x̂, sigma^2). It is
trained on the boxes that the frozen detector keeps in the training images and that belong to an
annotated object: on what it will be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.structures import DetDataSample
from mmengine.model import BaseModule
from mmengine.structures import InstanceData
from torch import Tensor

from ..evaluation.sample_pairs import strict_pairs
from .box_distribution import BoxDistribution
from .flow_head import FlowHead
from .flow_options import FlowOptions
from .mc_dropout import channel_masks, check_passes, thin
from .prediction_options import PredictionOptions
from .side_delta_coder import SideDeltaBBoxCoder


class BesideStock(FlowHead):
    """Mixin: a flow over the sides of boxes that come from elsewhere."""

    takes_stock_weights = True

    def add_stock_flow(
        self,
        channels: int,
        flow: Mapping[str, Any] | None,
        dropout: float,
        spread: float,
        min_score: float,
        min_iou: float,
    ) -> None:
        """Add the branch and what belongs to it.

        Args:
            channels: Features per box.
            flow: See :class:`~aqf_det.models.flow_options.FlowOptions`.
            dropout: Probability of dropout of the features.
            spread: First standard deviation of a side, in widths or heights of the box.
            min_score: Least score of the boxes that the branch is trained on.
            min_iou: Their least overlap with an annotated object.
        """
        if spread <= 0:
            raise ValueError(f"spread must be positive, got {spread}.")
        self.min_score, self.min_iou = min_score, min_iou
        self.side_coder = SideDeltaBBoxCoder(stds=(spread,) * 4)
        self.channels = channels
        self.add_flow(stock_flow_options(flow or {}), [channels], 1, dropout)

    @property
    def options(self) -> PredictionOptions:
        """The part of ``test_cfg`` that is not the stock head's alone."""
        ours = {f.name for f in fields(PredictionOptions)}
        options = PredictionOptions.parse({k: v for k, v in self.test_cfg.items() if k in ours})
        if options.voting is not None:
            raise ValueError(
                "test_cfg.voting needs the candidates that suppression removed, which stock heads "
                "do not hand out; leave it out, or use a FlowYOLOHead."
            )
        return options

    def training_pairs(self, found: InstanceData, sample: DetDataSample) -> tuple[Tensor, Tensor]:
        """Boxes (P, 4) that the detector keeps in an image, and the true boxes (P, 4) they mean."""
        chosen, truths = strict_pairs(
            found.bboxes, found.scores, found.labels, sample, self.min_score, self.min_iou
        )
        return found.bboxes[chosen], truths

    def flow_loss(
        self, features: Tensor, boxes: Tensor, frame: Tensor, targets: Tensor
    ) -> dict[str, Tensor]:
        """Stage-2 loss of P boxes (P, 4) with features (P, C), frames and true boxes (P, 4)."""
        level = torch.zeros(len(boxes), dtype=torch.long, device=boxes.device)
        mean, sigma = boxes[None], self.side_coder.scale(boxes)[None]
        weights = boxes.new_ones(len(boxes))
        return self.branch_loss(
            [self.dropout(features)], level, level, mean, sigma, frame, targets, weights
        )

    def distribution(
        self, features: Tensor, boxes: Tensor, frame: Tensor, options: PredictionOptions
    ) -> BoxDistribution:
        """The distribution of N boxes (N, 4) with features (N, C) in a picture's frame (4,)."""
        assert self.branch is not None
        passes = check_passes(options.mc_passes, self.dropout.p)
        masks = channel_masks(passes, [self.channels], self.dropout.p, options.mc_seed)
        level = torch.zeros(len(boxes), dtype=torch.long, device=boxes.device)
        mean = boxes.expand(passes, -1, -1)
        sigma = self.side_coder.scale(boxes).expand(passes, -1, -1)
        frames = frame.expand(len(boxes), 4)
        return self.branch(thin([features], masks), level, level, mean, sigma, frames)


def stock_flow_options(flow: Mapping[str, Any]) -> FlowOptions:
    """The options of a flow beside a head that has no Gaussian of its own."""
    if "base" in flow or not flow.get("branch", True):
        raise ValueError(
            "a stock detector has no Gaussian of its own to train: leave base and branch out of "
            "flow; kind='gaussian' is a branch like the others."
        )
    return FlowOptions.parse({**flow, "branch": True})


class PooledFlowHead(BesideStock, BaseModule):
    """The flow of a dense detector: features are pooled from the neck's maps at each kept box.

    Args:
        in_channels: Channels of the maps.
        strides: Their strides.
        test_cfg: The stock head's, with further options if wanted: see
            :class:`~aqf_det.models.prediction_options.PredictionOptions`.
        flow: See :class:`~aqf_det.models.flow_options.FlowOptions`.
        dropout: Probability of dropout of the pooled features, for MC dropout.
        spread: First standard deviation of a side, in widths or heights of the box.
        min_score: Least score of the boxes that the branch is trained on.
        min_iou: Their least overlap with an annotated object.
        pool: Cells of the pooled features in each direction.
        view: How far around the box they reach, in box sizes.
    """

    def __init__(
        self,
        in_channels: int,
        strides: Sequence[int],
        test_cfg: Mapping[str, Any],
        flow: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        spread: float = 0.1,
        min_score: float = 0.1,
        min_iou: float = 0.5,
        pool: int = 7,
        view: float = 1.25,
    ) -> None:
        super().__init__()
        self.test_cfg, self.view = test_cfg, view
        self.extractor = SingleRoIExtractor(
            roi_layer={
                "type": "RoIAlign",
                "output_size": pool,
                "sampling_ratio": 2,
                "use_torchvision": True,
            },
            out_channels=in_channels,
            featmap_strides=list(strides),
        )
        self.add_stock_flow(in_channels * pool**2, flow, dropout, spread, min_score, min_iou)

    def forward(self, maps: Sequence[Tensor], rois: Tensor) -> Tensor:
        """Features (N, C pool^2) of boxes (N, 5): image, x1, y1, x2, y2."""
        return self.extractor(maps, self.extractor.roi_rescale(rois, self.view)).flatten(1)
