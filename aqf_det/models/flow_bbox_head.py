"""The box head of a two-stage detector with a flow over the sides of the boxes it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmdet.models.roi_heads.bbox_heads import Shared2FCBBoxHead
from mmdet.registry import MODELS
from torch import Tensor, nn

from .stock_flow import BesideStock


@MODELS.register_module()
class FlowBBoxHead(BesideStock, Shared2FCBBoxHead):
    """mmdet's ``Shared2FCBBoxHead`` and a flow that reads its features at each kept box.

    Weights of a ``Shared2FCBBoxHead`` fit as they are, and so do all its arguments. By default each
    output moves one side of a proposal; a checkpoint trained with centre and size deltas needs its
    own ``bbox_coder``, from which the point boxes come. The flow is always one of sides.

    Args:
        flow: See :class:`~aqf_det.models.flow_options.FlowOptions`.
        dropout: Probability of dropout of the features that the flow reads, for MC dropout.
        spread: First standard deviation of a side, in widths or heights of the box.
        min_score: Least score of the boxes that the branch is trained on.
        min_iou: Their least overlap with an annotated object.
        bbox_coder: Config of the coder of the point boxes.
        **kwargs: As for mmdet's head.
    """

    shared_out_channels: int
    shared_fcs: nn.ModuleList
    avg_pool: nn.Module
    relu: nn.Module

    def __init__(
        self,
        *args: Any,
        flow: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        spread: float = 0.1,
        min_score: float = 0.1,
        min_iou: float = 0.5,
        bbox_coder: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        coder = dict(bbox_coder or {"type": "SideDeltaBBoxCoder"})
        super().__init__(*args, bbox_coder=coder, **kwargs)
        # The detector hands over the RoI head's.
        self.test_cfg = {}
        self.add_stock_flow(self.shared_out_channels, flow, dropout, spread, min_score, min_iou)

    def box_features(self, pooled: Tensor) -> Tensor:
        """Pooled maps (N, C, 7, 7) -> the features (N, channels) that the last layers read."""
        x = self.avg_pool(pooled) if self.with_avg_pool else pooled
        x = x.flatten(1)
        for fc in self.shared_fcs:
            x = self.relu(fc(x))
        return x
