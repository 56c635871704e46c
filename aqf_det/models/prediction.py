"""From head maps to detections: NMS first, distributions for the kept boxes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from mmcv.ops import batched_nms
from mmengine.structures import InstanceData
from torch import Tensor

from ..datasets.transforms import to_original_pixels
from .box_distribution import BoxDistribution
from .coder import Grid, decode_sides
from .mc_dropout import channel_masks, check_passes, thin
from .prediction_options import PredictionOptions
from .voting import vote, voters

if TYPE_CHECKING:
    from ..calibration import BoxCalibration
    from .yolo_head import FlowYOLOHead

#: Fields of a result that hold coordinates, besides the boxes.
COORDINATES = (
    "bbox_quantiles",
    "bbox_samples",
    "bbox_interval",
    "bbox_band",
    "bbox_outer",
    "bbox_inner",
)


@dataclass(frozen=True)
class Detections:
    """What was found in one image, in network-input pixels.

    Attributes:
        boxes: (N, 4) point boxes.
        scores: (N,).
        labels: (N,).
        distribution: Of the N boxes.
        stock: What a stock detector itself returns about them, in the pixels that were asked for;
            None where boxes or scores have been changed since.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    distribution: BoxDistribution
    stock: InstanceData | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def select(self, index: Tensor) -> Detections:
        """The detections at positions (M,), in that order."""
        return Detections(
            self.boxes[index],
            self.scores[index],
            self.labels[index],
            self.distribution.select(index),
        )


@dataclass(frozen=True)
class Candidates:
    """The candidates of one image and which of them suppression keeps.

    Attributes:
        raw: (N, 9 + C) outputs of the deterministic network for the whole grid.
        index: (P,) the candidates considered, as indices into the grid.
        boxes: (P, 4) their point boxes.
        scores: (P,) best class scores.
        labels: (P,) best classes.
        kept: (K,) positions among the P, best first.
    """

    raw: Tensor
    index: Tensor
    boxes: Tensor
    scores: Tensor
    labels: Tensor
    kept: Tensor


def find_candidates(
    head: FlowYOLOHead,
    hidden: Sequence[Tensor],
    grid: Grid,
    options: PredictionOptions,
    masks: Sequence[Tensor] | None = None,
) -> Candidates:
    """Point boxes and scores of one image, suppressed; with masks, means over MC-dropout passes."""
    raw = head.flatten(head.raw_maps(hidden))[0]
    if masks is None or not options.mc_moves_boxes:
        index = torch.arange(len(grid), device=raw.device)
        boxes, scores = boxes_and_scores(raw, grid, index)
    else:
        index = _promising(raw, options)
        boxes, scores = _mean_over_passes(head, hidden, grid, index, masks)
    best, labels = scores.max(-1)
    kept = suppress(boxes, best, labels, options)
    return Candidates(raw, index, boxes, best, labels, kept)


def dropout_masks(head: FlowYOLOHead, options: PredictionOptions) -> list[Tensor] | None:
    """The thinned networks of the MC-dropout passes, or None for the deterministic one."""
    passes = check_passes(options.mc_passes, head.dropout.p)
    return channel_masks(passes, head.hidden_channels, head.dropout.p, options.mc_seed)


def detect_image(
    head: FlowYOLOHead, hidden: Sequence[Tensor], frame: Tensor, options: PredictionOptions
) -> Detections:
    """Detections of one image.

    Args:
        head: The head.
        hidden: Its feature maps (1, 2c, H, W), one per level.
        frame: (4,) the rectangle of the picture.
        options: How to predict.
    """
    masks = dropout_masks(head, options)
    grid = head.grid(hidden)
    found = find_candidates(head, hidden, grid, options, masks)
    boxes, labels, kept = found.boxes, found.labels, found.kept

    def distribution(rows: Tensor) -> BoxDistribution:
        index = found.index[rows]
        features: Sequence[Tensor] = ()
        if masks is not None or head.branch is not None:
            features = head.cell_features(hidden, grid, torch.zeros_like(index), index)
        return cell_distribution(head, features, grid, index, found.raw[index], frame, masks)

    if options.voting is None or len(kept) == 0:
        return Detections(boxes[kept], found.scores[kept], labels[kept], distribution(kept))
    pool = _candidates(found.scores, options)
    position, closeness = voters(boxes, labels, kept, pool, options.voting_width)
    rows, place = position.unique(return_inverse=True)
    moved, voted = vote(options.voting, boxes[rows], distribution(rows), place, closeness)
    return Detections(moved, found.scores[kept], labels[kept], voted)


def rescored(found: Detections) -> Detections:
    """Scores times 1 - uncertainty, best first.

    The uncertainty of a box is the mean over its sides of min(1, standard deviation / length of the
    box in that direction).
    """
    length = (found.boxes[:, 2:] - found.boxes[:, :2]).clamp_min(1e-6).repeat(1, 2)
    aleatoric, epistemic = found.distribution.variance_parts()
    share = (aleatoric + epistemic).sqrt() / length
    scores = found.scores * (1 - share.clamp(max=1.0).mean(-1))
    order = scores.argsort(descending=True, stable=True)
    return replace(found, scores=scores).select(order)


def finish(
    found: Detections,
    meta: Mapping[str, Any],
    options: PredictionOptions,
    calibration: BoxCalibration,
    rescale: bool,
) -> InstanceData:
    """What a detector returns for an image.

    Args:
        found: The detections.
        meta: The image's metainfo.
        options: What to tell about them.
        calibration: The detector's.
        rescale: Whether to return pixels of the original image instead of the network's input.

    Returns:
        ``bboxes (N, 4), scores (N,), labels (N,), bbox_quantiles (N, K, 4), bbox_std (N, 4)``, with
        mixtures ``bbox_var_aleatoric`` and ``bbox_var_epistemic (N, 4)``, with ``n_samples``
        ``bbox_samples (N, S, 4)``, with ``conformal`` ``bbox_interval`` and ``bbox_band
        (N, 2, 4)``, ``bbox_outer`` and ``bbox_inner (N, 4)``.
    """
    result = InstanceData(metainfo={"quantile_levels": options.levels})
    result.bboxes, result.scores, result.labels = found.boxes, found.scores, found.labels
    sizes = box_sizes(to_original_pixels(found.boxes, meta))
    attach_distribution(result, found.distribution, options, calibration, sizes)
    if rescale:
        result = _to_original(result, meta)
    # Bit for bit, and with whatever else the stock detector says, such as masks.
    for name, value in found.stock.items() if found.stock is not None else ():
        setattr(result, name, value)
    return result


def box_sizes(boxes: Tensor) -> Tensor:
    """Square roots (N,) of the areas of boxes (N, 4)."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp_min(0).prod(-1).sqrt()


def boxes_and_scores(raw: Tensor, grid: Grid, index: Tensor) -> tuple[Tensor, Tensor]:
    """Raw outputs (..., P, 9 + C) of candidates (P,) -> boxes (..., P, 4), scores (..., P, C)."""
    boxes = decode_sides(raw[..., :4], grid.centre[index], grid.stride[index])
    return boxes, raw[..., 9:].sigmoid() * raw[..., 8:9].sigmoid()


def _promising(raw: Tensor, options: PredictionOptions) -> Tensor:
    """Candidates (P,) that may pass the threshold on average over the passes.

    Passes scatter around the deterministic network, so a candidate to which it gives less than a
    tenth of the threshold is not worth T passes.
    """
    confidence = raw[:, 8].sigmoid()
    index = (confidence > 0.1 * options.score_thr).nonzero().flatten()
    if len(index) > options.nms_pre:
        index = index[confidence[index].topk(options.nms_pre).indices]
    return index


def _mean_over_passes(
    head: FlowYOLOHead,
    hidden: Sequence[Tensor],
    grid: Grid,
    index: Tensor,
    masks: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Boxes (P, 4) and class scores (P, C) averaged over the thinned networks."""
    features = head.cell_features(hidden, grid, torch.zeros_like(index), index)
    raw = head.raw_at(features, grid, index, masks)
    boxes, scores = boxes_and_scores(raw, grid, index)
    return boxes.mean(0), scores.mean(0)


def _candidates(scores: Tensor, options: PredictionOptions) -> Tensor:
    """Positions of the candidates that enter suppression."""
    index = (scores > options.score_thr).nonzero().flatten()
    if len(index) > options.nms_pre:
        index = index[scores[index].topk(options.nms_pre).indices]
    return index


def suppress(boxes: Tensor, scores: Tensor, labels: Tensor, options: PredictionOptions) -> Tensor:
    """Hard NMS per class; returns the positions of the kept candidates, best first."""
    index = _candidates(scores, options)
    if len(index) == 0:
        return index
    _, kept = batched_nms(boxes[index], scores[index], labels[index], dict(options.nms))
    return index[kept[: options.max_per_img]]


def cell_distribution(
    head: FlowYOLOHead,
    features: Sequence[Tensor],
    grid: Grid,
    index: Tensor,
    raw: Tensor,
    frame: Tensor,
    masks: Sequence[Tensor] | None,
) -> BoxDistribution:
    """The distribution of chosen candidates, in network-input pixels.

    Args:
        head: The head.
        features: Of their cells, as its `cell_features` returns them; not needed for the stage-1
            Gaussian without MC dropout.
        grid: All candidates.
        index: (N,) the chosen ones.
        raw: (N, 9 + C) their outputs by the deterministic network.
        frame: (4,) or (N, 4) the rectangles of their pictures.
        masks: See :func:`dropout_masks`.
    """
    at = raw[None] if masks is None else head.raw_at(features, grid, index, masks)
    mean, sigma = head.gaussian(at, grid, index)
    if head.branch is None:
        return BoxDistribution.gaussian(mean, sigma)
    level, slot = grid.level[index], grid.slot[index]
    return head.branch(thin(features, masks), level, slot, mean, sigma, frame.expand(len(index), 4))


def attach_distribution(
    result: InstanceData,
    distribution: BoxDistribution,
    options: PredictionOptions,
    calibration: BoxCalibration,
    sizes: Tensor,
) -> None:
    """Add quantiles, standard deviations and, where asked for, samples and variance parts.

    Args:
        result: The detections.
        distribution: Of their boxes.
        options: What to add.
        calibration: Applied where there is one.
        sizes: (N,) sqrt(area) of the boxes in pixels of the original image.
    """
    if calibration.fitted and options.calibrated:
        distribution = calibration.recalibrate(distribution, sizes, options.settings)
    levels = torch.tensor(options.levels, device=result.bboxes.device)
    result.bbox_quantiles = distribution.quantiles(levels)
    aleatoric, epistemic = distribution.variance_parts()
    result.bbox_std = (aleatoric + epistemic).sqrt()
    if options.mixes:
        result.bbox_var_aleatoric, result.bbox_var_epistemic = aleatoric, epistemic
    if options.n_samples > 0:
        result.bbox_samples = distribution.samples(options.n_samples)
    if options.conformal is not None:
        bounds = calibration.bounds(distribution, sizes, options.conformal)
        for name, values in bounds.items():
            setattr(result, f"bbox_{name}", values)


def _to_original(result: InstanceData, meta: Mapping[str, Any]) -> InstanceData:
    """Map every coordinate, standard deviation and variance to pixels of the original image."""
    for name in ("bboxes", *COORDINATES):
        if name in result:
            setattr(result, name, to_original_pixels(result[name], meta))
    sx, sy = meta.get("scale_factor", (1.0, 1.0))[:2]
    scale = result.bboxes.new_tensor([sx, sy, sx, sy])
    result.bbox_std = result.bbox_std / scale
    for name in ("bbox_var_aleatoric", "bbox_var_epistemic"):
        if name in result:
            setattr(result, name, result[name] / scale.square())
    return result
