"""Multi-scale deformable attention (https://arxiv.org/abs/2010.04159)."""

import torch
from torch import Tensor

from aqf_det.compat.ops.precision import compute_dtype


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Attention-weighted sum of values sampled bilinearly from every level.

    Args:
        value: ``(B, sum H_l W_l, heads, D)``, the levels flattened one after the other.
        spatial_shapes: ``(L, 2)`` as H_l, W_l.
        level_start_index: ``(L,)``, implied by ``spatial_shapes`` and not used.
        sampling_locations: ``(B, Q, heads, L, P, 2)`` as x, y in [0, 1].
        attention_weights: ``(B, Q, heads, L, P)``.
        im2col_step: Chunk size of the compiled op, not used.

    Returns:
        ``(B, Q, heads * D)``.
    """
    dtype = compute_dtype(value)
    output = _attend(
        value.to(dtype),
        spatial_shapes,
        sampling_locations.to(dtype),
        attention_weights.to(dtype),
    )
    return output.to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Fill the gradients with respect to the values, the locations and the weights."""
    dtype = compute_dtype(value)
    leaves = [
        tensor.detach().to(dtype).requires_grad_()
        for tensor in (value, sampling_locations, attention_weights)
    ]
    with torch.enable_grad():
        output = _attend(leaves[0], spatial_shapes, leaves[1], leaves[2])
        grads = torch.autograd.grad(output, leaves, grad_output.to(dtype))
    for target, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads, strict=True):
        target.copy_(grad)


def _attend(value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    # mmcv has a differentiable torch version of its own, which it uses on CPU only.
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    sizes = [(int(height), int(width)) for height, width in shapes.tolist()]
    return multi_scale_deformable_attn_pytorch(value, sizes, locations, weights)
