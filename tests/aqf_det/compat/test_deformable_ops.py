"""Deformable convolution (v1, v2) and deformable attention against loops."""

import pytest
import torch
from mmcv.ops import (
    DeformConv2dPack,
    ModulatedDeformConv2d,
    ModulatedDeformConv2dPack,
    MultiScaleDeformableAttention,
    deform_conv2d,
    modulated_deform_conv2d,
)
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
from torch import Tensor

from aqf_det.compat.ops import ms_deform_attn_forward
from tests.aqf_det.compat import references
from tests.aqf_det.compat.fake_gpu import OnGpu, pretend_there_is_a_gpu

# kernel, stride, padding, dilation, groups, deform_groups
GEOMETRIES = [
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, 1),
    ((3, 2), (2, 1), (1, 2), (1, 2), 2, 1),
    ((2, 2), (1, 2), (2, 0), (2, 1), 1, 2),
    ((1, 1), (1, 1), (0, 0), (1, 1), 2, 4),
]


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def convolution_inputs(kernel, stride, padding, dilation, groups, deform_groups):
    height, width = (
        (size + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d, size in enumerate((3, 4))
    )
    points = deform_groups * kernel[0] * kernel[1]
    return {
        "input": random(2, 4, 3, 4, seed=0),
        "offset": random(2, 2 * points, height, width, seed=1, scale=1.5),
        "mask": random(2, points, height, width, seed=2).sigmoid(),
        "weight": random(2, 4 // groups, *kernel, seed=3),
        "bias": random(2, seed=4),
    }


def outputs_and_gradients(op, tensors, *args) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = op(*leaves, *args)
    upstream = random(*output.shape, seed=9).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_deform_conv_v1_follows_the_loop(geometry):
    inputs = convolution_inputs(*geometry)
    tensors = [inputs[name] for name in ("input", "offset", "weight")]

    def by_loop(x, offset, weight, *args):
        return references.deform_conv(x, offset, None, weight, None, *args)

    result = outputs_and_gradients(deform_conv2d, tensors, *geometry[1:])
    expected = outputs_and_gradients(by_loop, tensors, *geometry[1:])
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_deform_conv_v2_follows_the_loop(geometry):
    tensors = list(convolution_inputs(*geometry).values())
    result = outputs_and_gradients(modulated_deform_conv2d, tensors, *geometry[1:])
    expected = outputs_and_gradients(references.deform_conv, tensors, *geometry[1:])
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_deform_conv_v2_without_bias():
    inputs = convolution_inputs(*GEOMETRIES[0])
    layer = ModulatedDeformConv2d(4, 2, 3, padding=1, bias=False).double()
    layer.weight.data.copy_(inputs["weight"])
    result = layer(inputs["input"], inputs["offset"], inputs["mask"])
    zero_bias = {**inputs, "bias": torch.zeros(2, dtype=torch.float64)}
    expected = references.deform_conv(*zero_bias.values(), *GEOMETRIES[0][1:])
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("pack", [DeformConv2dPack, ModulatedDeformConv2dPack])
def test_packs_start_as_a_plain_convolution_and_train_their_offsets(pack):
    torch.manual_seed(0)
    layer = pack(4, 6, 3, padding=1)
    x = torch.randn(2, 4, 6, 5)
    plain = torch.nn.functional.conv2d(x, layer.weight, padding=1)
    # A modulation starts at sigmoid(0) = 1/2.
    factor = 0.5 if pack is ModulatedDeformConv2dPack else 1.0
    torch.testing.assert_close(layer(x), plain * factor, rtol=1e-4, atol=1e-5)
    layer(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert layer.conv_offset.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deform_conv_in_half_precision_is_rounded_once(dtype):
    tensors = [tensor.to(dtype) for tensor in convolution_inputs(*GEOMETRIES[0]).values()]
    result = outputs_and_gradients(modulated_deform_conv2d, tensors, *GEOMETRIES[0][1:])
    single = [tensor.float() for tensor in tensors]
    expected = outputs_and_gradients(modulated_deform_conv2d, single, *GEOMETRIES[0][1:])
    # The upstream gradient is rounded to the half type as well.
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.dtype == dtype
        spread = 4 * torch.finfo(dtype).eps * theirs.abs().max().item()
        torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=spread)


def test_deform_conv_of_non_contiguous_input():
    tensors = [tensor.requires_grad_() for tensor in convolution_inputs(*GEOMETRIES[0]).values()]
    strided = [t.detach().transpose(0, -1).contiguous().transpose(0, -1) for t in tensors]
    strided = [t.requires_grad_() for t in strided]
    assert not strided[0].is_contiguous()
    expected = modulated_deform_conv2d(*tensors, *GEOMETRIES[0][1:])
    result = modulated_deform_conv2d(*strided, *GEOMETRIES[0][1:])
    torch.testing.assert_close(result, expected)
    upstream = random(*expected.shape[::-1], seed=7).permute(3, 2, 1, 0)
    expected.backward(upstream.contiguous())
    result.backward(upstream)
    for ours, theirs in zip(strided, tensors, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


SHAPES = [(3, 4), (2, 2)]


def attention_inputs(queries: int = 3) -> list[Tensor]:
    value = random(2, 16, 2, 3, seed=0)
    locations = random(2, queries, 2, 2, 2, 2, seed=1, scale=0.4) + 0.5
    weights = random(2, queries, 2, 4, seed=2).softmax(-1).reshape(2, queries, 2, 2, 2)
    return [value, locations, weights]


def attend(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """The branch that mmcv takes on a GPU."""
    starts = torch.tensor([0, 12])
    return MultiScaleDeformableAttnFunction.apply(
        value, torch.tensor(SHAPES), starts, locations, weights, 64
    )


def test_deformable_attention_follows_the_loop():
    def by_loop(value, locations, weights):
        return references.deformable_attention(value, SHAPES, locations, weights)

    result = outputs_and_gradients(attend, attention_inputs())
    expected = outputs_and_gradients(by_loop, attention_inputs())
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deformable_attention_in_half_precision_is_rounded_once(dtype):
    tensors = [tensor.to(dtype) for tensor in attention_inputs()]
    result = attend(*tensors)
    assert result.dtype == dtype
    torch.testing.assert_close(result, attend(*[t.float() for t in tensors]).to(dtype))


def test_deformable_attention_of_no_query_and_of_non_contiguous_input():
    empty = outputs_and_gradients(attend, attention_inputs(queries=0))
    assert empty[0].shape == (2, 0, 6)
    assert not empty[1].any()
    plain = attention_inputs()
    strided = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in plain]
    for ours, theirs in zip(
        outputs_and_gradients(attend, strided), outputs_and_gradients(attend, plain), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_attention_layer_gives_the_same_on_a_gpu_as_on_cpu(monkeypatch):
    torch.manual_seed(0)
    layer = MultiScaleDeformableAttention(8, num_heads=2, num_levels=2, num_points=2, dropout=0.0)
    torch.nn.init.normal_(layer.attention_weights.weight)
    query, value = torch.randn(3, 2, 8), torch.randn(16, 2, 8)
    options = {
        "reference_points": torch.rand(2, 3, 2, 2),
        "spatial_shapes": torch.tensor(SHAPES),
        "level_start_index": torch.tensor([0, 12]),
    }
    expected = layer(query, value=value, **options)
    pretend_there_is_a_gpu(monkeypatch)
    calls = []

    def counted(*args, **kwargs):
        calls.append(1)
        return ms_deform_attn_forward(*args, **kwargs)

    monkeypatch.setattr("mmcv._ext.ms_deform_attn_forward", counted)
    result = layer(query, value=value.as_subclass(OnGpu), **options)
    assert calls == [1]
    torch.testing.assert_close(result.as_subclass(Tensor), expected)
