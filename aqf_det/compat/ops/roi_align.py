"""RoIAlign (https://arxiv.org/abs/1703.06870) with average or maximum inside a bin.

Average pooling is torchvision's. A bin of maximum pooling holds g_h x g_w sampling points, which
are exactly the values of an average RoIAlign with g_h x g_w times as many bins and one point per
bin, so it is that, followed by a maximum.
"""

import torch
import torchvision
from torch import Tensor

from aqf_det.compat.ops.precision import compute_dtype

MAX = 0


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fill ``output`` with pooled features.

    Args:
        input: ``(B, C, H, W)``.
        rois: ``(R, 5)`` as batch index, x1, y1, x2, y2.
        output: ``(R, C, aligned_height, aligned_width)``, written.
        argmax_y: Shape of ``output`` for maximum pooling: row of the winning point inside its bin.
        argmax_x: Likewise its column.
        aligned_height: Bins per column.
        aligned_width: Bins per row.
        spatial_scale: Feature pixels per image pixel.
        sampling_ratio: Points per bin and axis, 0 for one per feature pixel.
        pool_mode: 0 maximum, 1 average.
        aligned: Shift by half a pixel, as pixel centres ask for.
    """
    dtype = compute_dtype(input)
    features, boxes = input.detach().to(dtype), rois.detach().to(dtype)
    bins = (aligned_height, aligned_width)
    if pool_mode != MAX:
        output.copy_(
            torchvision.ops.roi_align(features, boxes, bins, spatial_scale, sampling_ratio, aligned)
        )
        return
    output.zero_()
    for (rows, columns), group in _points_per_bin(
        boxes, bins, spatial_scale, sampling_ratio, aligned
    ):
        points = _sample(features, boxes[group], bins, (rows, columns), spatial_scale, aligned)
        best, index = _split_bins(points, bins, (rows, columns)).max(dim=-1)
        output[group] = best.to(output.dtype)
        argmax_y[group] = (index // columns).to(argmax_y.dtype)
        argmax_x[group] = (index % columns).to(argmax_x.dtype)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fill ``grad_input`` ``(B, C, H, W)``; the boxes get no gradient."""
    dtype = compute_dtype(grad_output)
    grad, boxes = grad_output.to(dtype), rois.detach().to(dtype)
    bins = (aligned_height, aligned_width)
    # RoIAlign is linear in the features, so its gradient does not depend on their values.
    features = torch.zeros_like(grad_input, dtype=dtype).requires_grad_()
    with torch.enable_grad():
        if pool_mode != MAX:
            pooled = torchvision.ops.roi_align(
                features, boxes, bins, spatial_scale, sampling_ratio, aligned
            )
            (total,) = torch.autograd.grad(pooled, features, grad)
            grad_input.copy_(total)
            return
        total = torch.zeros_like(features)
        for (rows, columns), group in _points_per_bin(
            boxes, bins, spatial_scale, sampling_ratio, aligned
        ):
            points = _sample(features, boxes[group], bins, (rows, columns), spatial_scale, aligned)
            by_bin = _split_bins(points, bins, (rows, columns))
            index = (argmax_y[group].long() * columns + argmax_x[group].long()).unsqueeze(-1)
            chosen = by_bin.gather(-1, index).squeeze(-1)
            total = total + torch.autograd.grad(chosen, features, grad[group])[0]
    grad_input.copy_(total)


def _sample(
    features: Tensor,
    boxes: Tensor,
    bins: tuple[int, int],
    points: tuple[int, int],
    spatial_scale: float,
    aligned: bool,
) -> Tensor:
    """Values at every sampling point, ``(R, C, bins_h * points_h, bins_w * points_w)``."""
    size = (bins[0] * points[0], bins[1] * points[1])
    return torchvision.ops.roi_align(features, boxes, size, spatial_scale, 1, aligned)


def _split_bins(values: Tensor, bins: tuple[int, int], points: tuple[int, int]) -> Tensor:
    """``(R, C, bins_h * points_h, bins_w * points_w)`` -> ``(R, C, bins_h, bins_w, points)``."""
    split = values.reshape(*values.shape[:2], bins[0], points[0], bins[1], points[1])
    return split.transpose(3, 4).flatten(-2)


def _points_per_bin(
    boxes: Tensor, bins: tuple[int, int], spatial_scale: float, sampling_ratio: int, aligned: bool
) -> list[tuple[tuple[int, int], Tensor]]:
    """Groups of boxes with the same number of sampling points: ((rows, columns), box indices).

    A box without any area has no point and is in no group: it pools to zero.
    """
    if len(boxes) == 0:
        return []
    if sampling_ratio > 0:
        everything = torch.arange(len(boxes), device=boxes.device)
        return [((sampling_ratio, sampling_ratio), everything)]
    size = (boxes[:, [4, 3]] - boxes[:, [2, 1]]) * spatial_scale
    if not aligned:
        size = size.clamp(min=1)
    points = (size / size.new_tensor(bins)).ceil().long().clamp(min=0)
    groups = []
    for rows, columns in torch.unique(points, dim=0).tolist():
        if rows > 0 and columns > 0:
            members = (points == points.new_tensor([rows, columns])).all(dim=1)
            groups.append(((rows, columns), members.nonzero().squeeze(1)))
    return groups
