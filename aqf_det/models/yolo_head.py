"""The dense head: one box, its Gaussian and, in stage 2, its flow per slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.registry import MODELS, TASK_UTILS
from mmdet.structures import SampleList
from mmdet.structures.bbox import get_box_tensor
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.nn import functional as F

from .assigner import Assignment, picture_frames
from .blocks import separable_conv_bn
from .coder import Grid, decode_sides, make_grid
from .detection_losses import focal_bce, gaussian_box_loss, pairwise_iou_max, smooth_one_hot
from .flow_head import FlowHead
from .flow_options import FlowOptions
from .prediction import Detections, detect_image
from .prediction_options import PredictionOptions

#: log sigma in cells; outside no annotation is that exact and no box that vague.
LOG_SIGMA_RANGE = (-5.0, 4.0)


@MODELS.register_module()
class FlowYOLOHead(FlowHead, BaseDenseHead):
    """Anchor-free per-side YOLOv3 head whose boxes are distributions.

    Every slot of a cell predicts four log-distances t and four log standard deviations (the stage-1
    Gaussian, in cells), a confidence and class logits. With a flow, a branch with layers of its own
    reads the features of the same cell and reshapes the Gaussian's residual; it never changes t.

    Args:
        num_classes: Number of classes C.
        in_channels: Channels of the pyramid maps, finest first.
        strides: Strides of the maps.
        slots: Boxes per cell.
        flow: See :class:`~aqf_det.models.flow_options.FlowOptions`.
        dropout: Probability of dropout after the last separable convolution ("VD" uses 0.15).
        assigner: Config of the assigner.
        box_weight: Factor of the box loss, multiplied by ``2 - w h / A``.
        label_smoothing: Share of the uniform distribution in the class target.
        ignore_iou: Empty cells whose box overlaps an object this much have no confidence loss.
        train_cfg: Unused; mmdet's detectors pass it.
        test_cfg: See :class:`~aqf_det.models.prediction_options.PredictionOptions`.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: Sequence[int] = (128, 256, 512),
        strides: Sequence[int] = (8, 16, 32),
        slots: int = 3,
        flow: Mapping[str, Any] | FlowOptions | None = None,
        dropout: float = 0.0,
        assigner: Mapping[str, Any] | None = None,
        box_weight: float = 0.1,
        label_smoothing: float = 0.01,
        ignore_iou: float = 0.5,
        train_cfg: Mapping[str, Any] | None = None,
        test_cfg: Mapping[str, Any] | None = None,
        init_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.num_classes, self.slots = num_classes, slots
        self.strides = tuple(int(s) for s in strides)
        self.box_weight, self.label_smoothing = box_weight, label_smoothing
        self.ignore_iou = ignore_iou
        self.assigner = TASK_UTILS.build(assigner or {"type": "ScaleCentreAssigner"})
        self.test_cfg = dict(test_cfg or {})
        self.hidden_channels = tuple(2 * c for c in in_channels)
        self.last = nn.ModuleList(separable_conv_bn(c, 2 * c) for c in in_channels)
        self.outputs = nn.ModuleList(
            nn.Conv2d(c, slots * (9 + num_classes), 1) for c in self.hidden_channels
        )
        self.add_flow(FlowOptions.parse(flow or {}), self.hidden_channels, slots, dropout)
        self.reset_outputs()

    def reset_outputs(self) -> None:
        """Start with rare objects (p = 0.01) and boxes of a few cells known to about one cell."""
        for conv in self.output_convs():
            nn.init.normal_(conv.weight, std=0.01)
            assert conv.bias is not None
            bias = conv.bias.detach().view(self.slots, -1)
            bias[:, :4], bias[:, 4:8], bias[:, 8], bias[:, 9:] = 1.0, 0.0, -4.6, -2.0

    # ---------------------------------------------------------------- the network

    def output_convs(self) -> list[nn.Conv2d]:
        """The last 1 x 1 convolution of every level."""
        return [conv for conv in self.outputs if isinstance(conv, nn.Conv2d)]

    def hidden(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Pyramid maps -> the maps (B, 2c, H, W) that the last 1 x 1 convolution reads."""
        return [layer(x) for layer, x in zip(self.last, maps, strict=True)]

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Pyramid maps -> raw maps (B, slots (9 + C), H, W), one per level."""
        return self.raw_maps(self.hidden(maps))

    def raw_maps(self, hidden: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Dropout (in training mode) and the last convolution."""
        return tuple(conv(self.dropout(h)) for conv, h in zip(self.outputs, hidden, strict=True))

    def flatten(self, raw: Sequence[Tensor]) -> Tensor:
        """Raw maps -> (B, N, 9 + C) in float32, in the order of the grid."""
        flat = [
            m.permute(0, 2, 3, 1).reshape(m.shape[0], -1, m.shape[1] // self.slots) for m in raw
        ]
        return torch.cat(flat, 1).float()

    def grid(self, maps: Sequence[Tensor]) -> Grid:
        """The candidates of maps of these sizes."""
        shapes = [(int(m.shape[-2]), int(m.shape[-1])) for m in maps]
        return make_grid(shapes, self.strides, self.slots, maps[0].device)

    # ---------------------------------------------------------------- training

    def loss(self, maps: Sequence[Tensor], batch_data_samples: SampleList) -> dict[str, Tensor]:
        """Losses of the current stage for a batch."""
        self.calibration.refuse_training()
        with torch.set_grad_enabled(torch.is_grad_enabled() and int(self.stage) == 1):
            hidden = self.hidden(maps)
        grid = self.grid(hidden)
        assigned = self.assign(grid, batch_data_samples)
        if int(self.stage) == 2:
            return self.flow_loss(hidden, grid, assigned)
        boxes = [_objects(sample)[0] for sample in batch_data_samples]
        ignored = [_ignored_boxes(sample, maps[0]) for sample in batch_data_samples]
        area = float(self.strides[0] ** 2 * hidden[0].shape[-2] * hidden[0].shape[-1])
        every = [torch.cat(pair) for pair in zip(boxes, ignored, strict=True)]
        return self.loss_by_feat(self.flatten(self.raw_maps(hidden)), grid, assigned, every, area)

    def assign(self, grid: Grid, samples: SampleList) -> Assignment:
        """The positive candidates of a batch."""
        boxes, labels, weights = zip(*(_objects(sample) for sample in samples), strict=True)
        return self.assigner.assign(grid, boxes, labels, weights).framed(samples)

    def loss_by_feat(
        self,
        raw: Tensor,
        grid: Grid,
        assigned: Assignment,
        every_box: Sequence[Tensor],
        area: float,
    ) -> dict[str, Tensor]:
        """Stage-1 losses, each summed over the batch and divided by its size.

        Args:
            raw: (B, N, 9 + C).
            grid: The N candidates.
            assigned: Positive candidates with their objects.
            every_box: All objects of each image, ignored ones too: cells that find one of them are
                not taught that there is nothing.
            area: Pixels of the network's input.
        """
        batch = raw.shape[0]
        at = raw[assigned.image, assigned.index]
        stride = grid.stride[assigned.index]
        mean = decode_sides(at[:, :4], grid.centre[assigned.index], stride)
        log_sigma = at[:, 4:8].clamp(*LOG_SIGMA_RANGE)
        size = (assigned.boxes[:, 2:] - assigned.boxes[:, :2]).prod(-1)
        box_weight = self.box_weight * (2 - size / area) * assigned.weights
        box = gaussian_box_loss(self.flow.base, mean, log_sigma, assigned.boxes, stride)

        target = raw.new_zeros(raw.shape[:2])
        weight = self._negative_weights(raw.detach(), grid, every_box)
        target[assigned.image, assigned.index] = 1.0
        weight[assigned.image, assigned.index] = assigned.weights

        classes = smooth_one_hot(assigned.labels, self.num_classes, self.label_smoothing)
        class_loss = focal_bce(at[:, 9:], classes).sum(-1) * assigned.weights
        return {
            "loss_box": (box.sum(-1) * box_weight).sum() / batch,
            "loss_conf": (focal_bce(raw[..., 8], target) * weight).sum() / batch,
            "loss_cls": class_loss.sum() / batch,
        }

    def _negative_weights(self, raw: Tensor, grid: Grid, every_box: Sequence[Tensor]) -> Tensor:
        """1 for candidates (B, N) whose box overlaps no object by ``ignore_iou``, else 0."""
        boxes = decode_sides(raw[..., :4], grid.centre, grid.stride)
        overlap = [pairwise_iou_max(b, g) for b, g in zip(boxes, every_box, strict=True)]
        return (torch.stack(overlap) < self.ignore_iou).float()

    def flow_loss(
        self, hidden: Sequence[Tensor], grid: Grid, assigned: Assignment
    ) -> dict[str, Tensor]:
        """Stage-2 loss of the branch at the positive cells; the trunk only supplies features."""
        features = self.cell_features(hidden, grid, assigned.image, assigned.index)
        return self.flow_loss_at(features, grid, assigned)

    def flow_loss_at(
        self,
        features: Sequence[Tensor],
        grid: Grid,
        assigned: Assignment,
        raw: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Stage-2 loss from the features of the positive cells, as `cell_features` returns them.

        Args:
            features: Of the positive cells.
            grid: All candidates.
            assigned: The positive cells and their objects.
            raw: (1, P, 9 + C) what :meth:`raw_at` gives for them, where it is known already.
        """
        features = [self.dropout(f) for f in features]
        if raw is None:
            raw = self.raw_at(features, grid, assigned.index)
        mean, sigma = self.gaussian(raw, grid, assigned.index)
        level, slot = grid.level[assigned.index], grid.slot[assigned.index]
        assert assigned.frame is not None  # see assign
        return self.branch_loss(
            features, level, slot, mean, sigma, assigned.frame, assigned.boxes, assigned.weights
        )

    # ---------------------------------------------------------------- boxes of chosen cells

    def cell_features(
        self, hidden: Sequence[Tensor], grid: Grid, image: Tensor, index: Tensor
    ) -> list[Tensor]:
        """Features (P_l, 2c) of the cells of chosen candidates, level by level.

        Args:
            hidden: Feature maps of every level.
            grid: The candidates.
            image: (P,) image of each candidate.
            index: (P,) index into the grid.
        """
        level, y, x, _ = grid.locate(index)
        features = []
        for i, h in enumerate(hidden):
            mine = (level == i).nonzero().flatten()
            features.append(h[image[mine], :, y[mine], x[mine]])
        return features

    def raw_at(
        self,
        features: Sequence[Tensor],
        grid: Grid,
        index: Tensor,
        masks: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Raw outputs (T, P, 9 + C) of chosen candidates from their features.

        Args:
            features: As :meth:`cell_features` returns them.
            grid: The candidates.
            index: (P,) index into the grid.
            masks: Dropout masks (T, 2c) of every level, or None for one pass (T = 1).
        """
        passes = 1 if masks is None else len(masks[0])
        size = 9 + self.num_classes
        level, slot = grid.level[index], grid.slot[index]
        raw = torch.zeros(passes, len(index), size, device=index.device)
        for i, conv in enumerate(self.output_convs()):
            assert conv.bias is not None
            weights = conv.weight.flatten(1).unflatten(0, (self.slots, 1, size))
            if masks is not None:
                weights = weights * masks[i].to(weights)[:, None]
            for k, bias in enumerate(conv.bias.unflatten(0, (self.slots, size))):
                rows = ((level == i) & (slot == k)).nonzero().flatten()
                mine = (slot[level == i] == k).nonzero().flatten()
                # One product for all passes: (P_k, C) x (C, T (9 + C)).
                out = F.linear(features[i][mine], weights[k].flatten(0, 1))
                raw[:, rows] = (
                    out.unflatten(-1, (passes, size)).movedim(1, 0).float() + bias.float()
                )
        return raw

    def gaussian(self, raw: Tensor, grid: Grid, index: Tensor) -> tuple[Tensor, Tensor]:
        """Stage-1 mean and standard deviation (..., P, 4) in network-input pixels."""
        stride = grid.stride[index]
        mean = decode_sides(raw[..., :4], grid.centre[index], stride)
        return mean, raw[..., 4:8].clamp(*LOG_SIGMA_RANGE).exp() * stride[:, None]

    # ---------------------------------------------------------------- prediction

    def predict(
        self, maps: Sequence[Tensor], batch_data_samples: SampleList, rescale: bool = False
    ) -> list[InstanceData]:
        """Detections with their distributions, one :class:`InstanceData` per image."""
        options = self.options
        found = self.detect(maps, batch_data_samples, options)
        return self.finish(found, batch_data_samples, options, rescale)

    def detect(
        self, maps: Sequence[Tensor], samples: SampleList, options: PredictionOptions
    ) -> list[Detections]:
        """Detections of every image, in network-input pixels and as yet uncalibrated."""
        hidden = self.hidden(maps)
        return [
            detect_image(self, [h[i : i + 1] for h in hidden], frame, options)
            for i, frame in enumerate(picture_frames(samples, hidden[0].float()))
        ]


def _objects(sample: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes (G, 4), labels (G,) and mix-up weights (G,) of an image."""
    instances = sample.gt_instances
    boxes = get_box_tensor(instances.bboxes).float()
    weights = instances.get("weights")
    if weights is None:
        weights = boxes.new_ones(len(boxes))
    return boxes, instances.labels, torch.as_tensor(weights, device=boxes.device).float()


def _ignored_boxes(sample: Any, like: Tensor) -> Tensor:
    """Boxes (I, 4) marked to be ignored (difficult or crowd)."""
    if "ignored_instances" not in sample:
        return like.new_zeros((0, 4), dtype=torch.float32)
    return get_box_tensor(sample.ignored_instances.bboxes).float().reshape(-1, 4)
