"""RoI max pooling over whole pixels (https://arxiv.org/abs/1504.08083), by mmcv's definition.

torchvision rounds the scaled box to whole pixels first; mmcv, whose trained weights expect its own
rule, keeps the fractional box [x1, x2 + 1) * scale and rounds only the bin borders outwards.
"""

import torch
from torch import Tensor

from aqf_det.compat.ops.precision import compute_dtype

# Upper bound on gathered elements held at once (128 MB in float32).
_CHUNK_ELEMENTS = 2**25


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Fill ``output`` with the maximum of each bin, 0 where a bin covers no pixel.

    Args:
        input: ``(B, C, H, W)``.
        rois: ``(R, 5)`` as batch index, x1, y1, x2, y2 (last pixel included).
        output: ``(R, C, pooled_height, pooled_width)``, written.
        argmax: Same shape, int32: flat index ``y * W + x`` of the maximum, -1 for an empty bin.
        pooled_height: Bins per column.
        pooled_width: Bins per row.
        spatial_scale: Feature pixels per image pixel.
    """
    channels, height, width = input.shape[1:]
    features = input.detach().flatten(2)
    boxes = rois.detach().to(compute_dtype(rois))
    top, bottom = _borders(boxes[:, 2], boxes[:, 4], pooled_height, spatial_scale, height)
    left, right = _borders(boxes[:, 1], boxes[:, 3], pooled_width, spatial_scale, width)
    malformed = (boxes[:, 3] + 1 <= boxes[:, 1]) | (boxes[:, 4] + 1 <= boxes[:, 2])
    bottom = torch.where(malformed[:, None], top, bottom)
    if len(boxes) == 0:
        return
    tallest = max(int((bottom - top).max()), 1)
    widest = max(int((right - left).max()), 1)
    per_roi = channels * pooled_height * pooled_width * tallest * widest
    for chunk in torch.arange(len(boxes), device=boxes.device).split(
        max(_CHUNK_ELEMENTS // per_roi, 1)
    ):
        rows = top[chunk, :, None] + torch.arange(tallest, device=top.device)  # (r, ph, tallest)
        columns = left[chunk, :, None] + torch.arange(widest, device=left.device)
        valid_rows = rows < bottom[chunk, :, None]
        valid_columns = columns < right[chunk, :, None]
        pixels = rows[:, :, None, :, None] * width + columns[:, None, :, None, :]
        valid = valid_rows[:, :, None, :, None] & valid_columns[:, None, :, None, :]
        pixels = torch.where(valid, pixels, 0).flatten(3)  # (r, ph, pw, points)
        valid = valid.flatten(3)
        source = features[boxes[chunk, 0].long()]  # (r, C, H * W)
        values = source.gather(2, pixels.flatten(1)[:, None].expand(-1, channels, -1))
        values = values.unflatten(2, pixels.shape[1:]).masked_fill(~valid[:, None], -torch.inf)
        best, position = values.max(dim=-1)
        where = pixels[:, None].expand(-1, channels, -1, -1, -1)
        where = where.gather(-1, position[..., None]).squeeze(-1)
        empty = ~valid.any(dim=-1)[:, None]
        output[chunk] = best.masked_fill(empty, 0)
        argmax[chunk] = where.masked_fill(empty, -1).to(argmax.dtype)


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add every output gradient to the pixel that was the maximum of its bin."""
    batch, channels, height, width = grad_input.shape
    planes = rois[:, 0].long()[:, None] * channels + torch.arange(channels, device=rois.device)
    index = planes[:, :, None, None] * (height * width) + argmax.long()
    taken = argmax >= 0
    total = torch.zeros(
        batch * channels * height * width, dtype=compute_dtype(grad_output), device=rois.device
    )
    total.index_add_(0, index[taken], grad_output[taken].to(total.dtype))
    grad_input.copy_(total.view_as(grad_input))


def _borders(
    low: Tensor, high: Tensor, bins: int, spatial_scale: float, limit: int
) -> tuple[Tensor, Tensor]:
    """First pixel and one past the last pixel of each bin, both ``(R, bins)``."""
    start = low * spatial_scale
    step = ((high + 1) * spatial_scale - start) / bins
    index = torch.arange(bins, device=low.device, dtype=start.dtype)
    first = torch.floor(index * step[:, None] + start[:, None])
    end = torch.ceil((index + 1) * step[:, None] + start[:, None])
    return first.clamp(0, limit).long(), end.clamp(0, limit).long()
