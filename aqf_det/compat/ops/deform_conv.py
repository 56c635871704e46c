"""Deformable convolution v1 (https://arxiv.org/abs/1703.06211) and v2 (1811.11168)."""

from collections.abc import Sequence

import torch
import torchvision
from torch import Tensor

from aqf_det.compat.ops.precision import compute_dtype


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    **geometry: int,
) -> None:
    """Fill ``output`` ``(B, O, H', W')`` with the convolution sampled at shifted positions.

    Args:
        input: ``(B, C, H, W)``.
        weight: ``(O, C / group, kH, kW)``.
        offset: ``(B, 2 G kH kW, H', W')``, per sampling point its y then its x shift.
        output: Written.
        columns: Scratch space of the compiled op, unused.
        ones: Scratch space of the compiled op, unused.
        geometry: dH, dW (stride), padH, padW, dilationH, dilationW; the others follow from shapes.
    """
    output.copy_(_convolve(input, offset, None, weight, None, _v1_geometry(geometry)))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **geometry: int,
) -> None:
    """Fill the gradients with respect to ``input`` and ``offset``."""
    tensors = [input, offset, None, weight, None]
    grads = _gradients(tensors, [0, 1], grad_output, _v1_geometry(geometry))
    grad_input.copy_(grads[0])
    grad_offset.copy_(grads[1])


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_weight: Tensor,
    columns: Tensor,
    ones: Tensor,
    scale: float = 1.0,
    **geometry: int,
) -> None:
    """Add ``scale`` times the gradient with respect to the weight to ``grad_weight``."""
    tensors = [input, offset, None, torch.zeros_like(grad_weight), None]
    (grad,) = _gradients(tensors, [3], grad_output, _v1_geometry(geometry))
    grad_weight.add_(grad.to(grad_weight.dtype), alpha=scale)


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    with_bias: bool,
    **geometry: int,
) -> None:
    """As :func:`deform_conv_forward`, each sample also multiplied by its entry of ``mask``.

    Args:
        mask: ``(B, G kH kW, H', W')``.
        bias: ``(O,)``, used when ``with_bias``.
    """
    used_bias = bias if with_bias else None
    output.copy_(_convolve(input, offset, mask, weight, used_bias, _v2_geometry(geometry)))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    with_bias: bool,
    **geometry: int,
) -> None:
    """Fill the gradients with respect to every input of the forward pass."""
    tensors = [input, offset, mask, weight, bias if with_bias else None]
    targets = [grad_input, grad_offset, grad_mask, grad_weight, grad_bias]
    wanted = [0, 1, 2, 3, 4] if with_bias else [0, 1, 2, 3]
    grads = _gradients(tensors, wanted, grad_output, _v2_geometry(geometry))
    for index, grad in zip(wanted, grads, strict=True):
        targets[index].copy_(grad)


_Geometry = dict[str, tuple[int, int]]


def _v1_geometry(g: dict[str, int]) -> _Geometry:
    return {
        "stride": (g["dH"], g["dW"]),
        "padding": (g["padH"], g["padW"]),
        "dilation": (g["dilationH"], g["dilationW"]),
    }


def _v2_geometry(g: dict[str, int]) -> _Geometry:
    return {
        "stride": (g["stride_h"], g["stride_w"]),
        "padding": (g["pad_h"], g["pad_w"]),
        "dilation": (g["dilation_h"], g["dilation_w"]),
    }


def _convolve(
    input: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    geometry: _Geometry,
) -> Tensor:
    dtype = compute_dtype(input)
    return torchvision.ops.deform_conv2d(
        input.to(dtype),
        offset.to(dtype),
        weight.to(dtype),
        None if bias is None else bias.to(dtype),
        mask=None if mask is None else mask.to(dtype),
        **geometry,
    )


def _gradients(
    tensors: Sequence[Tensor | None], wanted: list[int], grad_output: Tensor, geometry: _Geometry
) -> tuple[Tensor, ...]:
    """Gradients of ``_convolve`` with respect to ``tensors[i]`` for i in ``wanted``."""
    dtype = compute_dtype(grad_output)
    leaves = [
        None if tensor is None else tensor.detach().to(dtype).requires_grad_(index in wanted)
        for index, tensor in enumerate(tensors)
    ]
    input, offset, mask, weight, bias = leaves
    assert input is not None and offset is not None and weight is not None
    with torch.enable_grad():
        output = _convolve(input, offset, mask, weight, bias, geometry)
        sources = [
            leaf for index, leaf in enumerate(leaves) if index in wanted and leaf is not None
        ]
        return torch.autograd.grad(output, sources, grad_output.to(dtype))
