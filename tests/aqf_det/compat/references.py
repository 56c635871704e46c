"""The ops by their definitions: loops over single numbers, differentiable by torch's autograd.

Slow on purpose, and written without looking at the vectorised versions they judge.
"""

import math

import torch
from torch import Tensor


def shaped(values: list[Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The values as one tensor; nothing of no values, but still a function of ``like``."""
    return torch.stack(values).reshape(shape) if values else 0 * like.sum() + like.new_zeros(shape)


def iou(a: list[float], b: list[float], offset: int = 0) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + offset)
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + offset)
    area_a = (a[2] - a[0] + offset) * (a[3] - a[1] + offset)
    area_b = (b[2] - b[0] + offset) * (b[3] - b[1] + offset)
    return width * height / (area_a + area_b - width * height)


def nms(boxes: Tensor, scores: Tensor, threshold: float, offset: int = 0) -> list[int]:
    rows = boxes.double().tolist()
    order = sorted(range(len(rows)), key=lambda i: -scores[i].item())
    kept: list[int] = []
    for candidate in order:
        if all(iou(rows[candidate], rows[k], offset) <= threshold for k in kept):
            kept.append(candidate)
    return kept


def soft_nms(
    boxes: Tensor,
    scores: Tensor,
    threshold: float,
    sigma: float,
    min_score: float,
    method: str,
    offset: int = 0,
) -> tuple[list[int], list[float]]:
    rows = boxes.double().tolist()
    remaining = dict(enumerate(scores.double().tolist()))
    kept, kept_scores = [], []
    while remaining:
        best = max(remaining, key=lambda i: (remaining[i], -i))
        kept.append(best)
        kept_scores.append(remaining.pop(best))
        for i in list(remaining):
            overlap = iou(rows[best], rows[i], offset)
            if method == "gaussian":
                remaining[i] *= math.exp(-(overlap**2) / sigma)
            elif overlap >= threshold:
                remaining[i] *= 0.0 if method == "naive" else 1 - overlap
            if remaining[i] < min_score:
                del remaining[i]
    return kept, kept_scores


def zero_padded(plane: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Bilinear value at (y, x); pixels outside the plane count as zero."""
    height, width = plane.shape
    top, left = math.floor(y.item()), math.floor(x.item())
    value = plane.new_zeros(())
    for row in (top, top + 1):
        for column in (left, left + 1):
            if 0 <= row < height and 0 <= column < width:
                value = value + plane[row, column] * (1 - (y - row).abs()) * (
                    1 - (x - column).abs()
                )
    return value


def border_clamped(plane: Tensor, y: float, x: float) -> Tensor:
    """RoIAlign's bilinear value: zero beyond one pixel outside, else clamped to the border."""
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return plane.new_zeros(())
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, over = y - top, x - left
    return (
        plane[top, left] * (1 - down) * (1 - over)
        + plane[top, right] * (1 - down) * over
        + plane[bottom, left] * down * (1 - over)
        + plane[bottom, right] * down * over
    )


def roi_align(
    features: Tensor,
    rois: Tensor,
    bins: tuple[int, int],
    scale: float,
    sampling_ratio: int,
    mode: str,
    aligned: bool,
) -> Tensor:
    shift = 0.5 if aligned else 0.0
    output = []
    for image, *corners in rois.double().tolist():
        x1, y1, x2, y2 = (corner * scale - shift for corner in corners)
        width, height = x2 - x1, y2 - y1
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        bin_h, bin_w = height / bins[0], width / bins[1]
        rows = sampling_ratio or math.ceil(bin_h)
        columns = sampling_ratio or math.ceil(bin_w)
        for plane in features[int(image)]:
            for i in range(bins[0]):
                for j in range(bins[1]):
                    points = [
                        border_clamped(
                            plane,
                            y1 + (i + (a + 0.5) / rows) * bin_h,
                            x1 + (j + (b + 0.5) / columns) * bin_w,
                        )
                        for a in range(rows)
                        for b in range(columns)
                    ]
                    values = torch.stack(points) if points else plane.new_zeros(1)
                    output.append(values.max() if mode == "max" else values.mean())
    return shaped(output, (len(rois), features.shape[1], *bins), features)


def roi_pool(features: Tensor, rois: Tensor, bins: tuple[int, int], scale: float) -> Tensor:
    height, width = features.shape[2:]
    output = []
    for image, x1, y1, x2, y2 in rois.double().tolist():
        left, top = x1 * scale, y1 * scale
        bin_w = ((x2 + 1) * scale - left) / bins[1]
        bin_h = ((y2 + 1) * scale - top) / bins[0]
        for plane in features[int(image)]:
            for i in range(bins[0]):
                for j in range(bins[1]):
                    rows = range(
                        max(math.floor(top + i * bin_h), 0),
                        min(math.ceil(top + (i + 1) * bin_h), height),
                    )
                    columns = range(
                        max(math.floor(left + j * bin_w), 0),
                        min(math.ceil(left + (j + 1) * bin_w), width),
                    )
                    pixels = [plane[r, c] for r in rows for c in columns]
                    empty = not pixels or bin_w <= 0 or bin_h <= 0
                    output.append(plane.new_zeros(()) if empty else torch.stack(pixels).max())
    return shaped(output, (len(rois), features.shape[1], *bins), features)


def deform_conv(
    features: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    deform_groups: int,
) -> Tensor:
    batch, channels = features.shape[:2]
    out_channels, per_group, kernel_h, kernel_w = weight.shape
    out_h, out_w = offset.shape[2:]
    output = features.new_zeros(batch, out_channels, out_h, out_w).tolist()
    for b in range(batch):
        for o in range(out_channels):
            for y in range(out_h):
                for x in range(out_w):
                    total = features.new_zeros(()) if bias is None else bias[o]
                    for c in range(per_group):
                        channel = o // (out_channels // groups) * per_group + c
                        deform = channel // (channels // deform_groups)
                        for i in range(kernel_h):
                            for j in range(kernel_w):
                                k = (deform * kernel_h + i) * kernel_w + j
                                row = y * stride[0] - padding[0] + i * dilation[0]
                                col = x * stride[1] - padding[1] + j * dilation[1]
                                row = row + offset[b, 2 * k, y, x]
                                col = col + offset[b, 2 * k + 1, y, x]
                                value = zero_padded(features[b, channel], row, col)
                                if mask is not None:
                                    value = value * mask[b, k, y, x]
                                total = total + weight[o, c, i, j] * value
                    output[b][o][y][x] = total
    totals = [total for image in output for plane in image for row in plane for total in row]
    return shaped(totals, (batch, out_channels, out_h, out_w), features)


def deformable_attention(
    value: Tensor, shapes: list[tuple[int, int]], locations: Tensor, weights: Tensor
) -> Tensor:
    batch, _, heads, width = value.shape
    queries, levels, points = locations.shape[1], len(shapes), locations.shape[4]
    output = []
    for b in range(batch):
        for q in range(queries):
            for h in range(heads):
                for d in range(width):
                    total, start = value.new_zeros(()), 0
                    for level in range(levels):
                        rows, columns = shapes[level]
                        plane = value[b, start : start + rows * columns, h, d]
                        plane = plane.reshape(rows, columns)
                        start += rows * columns
                        for p in range(points):
                            x, y = locations[b, q, h, level, p]
                            sample = zero_padded(plane, y * rows - 0.5, x * columns - 0.5)
                            total = total + weights[b, q, h, level, p] * sample
                    output.append(total)
    return shaped(output, (batch, queries, heads * width), value)


def sigmoid_focal_loss(
    logits: Tensor, target: Tensor, gamma: float, alpha: float, weight: Tensor | None
) -> Tensor:
    rows = []
    for n, label in enumerate(target.tolist()):
        row_weight = 1.0 if weight is None or label >= len(weight) else weight[label]
        for c, logit in enumerate(logits[n]):
            p = 1 / (1 + torch.exp(-logit))
            if c == label:
                loss = -alpha * (1 - p) ** gamma * torch.log(p)
            else:
                loss = -(1 - alpha) * p**gamma * torch.log(1 - p)
            rows.append(loss * row_weight)
    return shaped(rows, logits.shape, logits)


def softmax_focal_loss(
    logits: Tensor, target: Tensor, gamma: float, alpha: float, weight: Tensor | None
) -> Tensor:
    rows = []
    for n, label in enumerate(target.tolist()):
        if label < 0:
            rows.append(logits.new_zeros(()))
            continue
        p = torch.exp(logits[n, label]) / sum(torch.exp(logit) for logit in logits[n])
        row_weight = 1.0 if weight is None else weight[label]
        rows.append(-alpha * (1 - p) ** gamma * torch.log(p) * row_weight)
    return shaped(rows, target.shape, logits)
