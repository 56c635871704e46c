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
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    output = op(*leaves, *args)
    generator = torch.Generator().manual_seed(9)
    upstream = torch.randint(-4, 5, output.shape, generator=generator)  # exact in every type
    grads = torch.autograd.grad(output, leaves, upstream.to(output), materialize_grads=True)
    return [output.detach(), *grads]


def check_against_loop(op, loop, tensors: list[Tensor], *args) -> None:
    results = outputs_and_gradients(op, tensors, *args)
    exact = outputs_and_gradients(loop, [tensor.double() for tensor in tensors], *args)
    for ours, theirs in zip(results, exact, strict=True):
        torch.testing.assert_close(ours, theirs.to(tensors[0].dtype))


def strided(tensors: list[Tensor]) -> list[Tensor]:
    """The same numbers in another order in memory."""
    moved = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in tensors]
    assert not moved[0].is_contiguous()
    return moved


def v1_by_loop(x, offset, weight, *args):
    return references.deform_conv(x, offset, None, weight, None, *args)


# Op, its loop, the inputs it takes.
CONVOLUTIONS = {
    "v1": (deform_conv2d, v1_by_loop, ("input", "offset", "weight")),
    "v2": (
        modulated_deform_conv2d,
        references.deform_conv,
        ("input", "offset", "mask", "weight", "bias"),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_deform_conv_follows_the_loop(geometry, name):
    op, loop, wanted = CONVOLUTIONS[name]
    inputs = convolution_inputs(*geometry)
    check_against_loop(op, loop, [inputs[key] for key in wanted], *geometry[1:])


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deform_conv_in_half_precision_follows_the_loop(dtype, name):
    op, loop, wanted = CONVOLUTIONS[name]
    inputs = convolution_inputs(*GEOMETRIES[-1])
    check_against_loop(op, loop, [inputs[key].to(dtype) for key in wanted], *GEOMETRIES[-1][1:])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_deform_conv_of_non_contiguous_input_follows_the_loop(name):
    op, loop, wanted = CONVOLUTIONS[name]
    inputs = convolution_inputs(*GEOMETRIES[-1])
    check_against_loop(op, loop, strided([inputs[key] for key in wanted]), *GEOMETRIES[-1][1:])


def test_deform_conv_of_a_non_contiguous_gradient_is_the_same():
    tensors = list(convolution_inputs(*GEOMETRIES[0]).values())
    leaves = [tensor.requires_grad_() for tensor in tensors]
    output = modulated_deform_conv2d(*leaves, *GEOMETRIES[0][1:])
    upstream = random(*output.shape[::-1], seed=7).permute(3, 2, 1, 0)
    expected = torch.autograd.grad(output, leaves, upstream.contiguous(), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(output, leaves, upstream), expected)


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


SHAPES = [(3, 4), (2, 2)]


def attention_inputs(queries: int = 3) -> list[Tensor]:
    value = random(2, 16, 2, 3, seed=0)
    locations = random(2, queries, 2, 2, 2, 2, seed=1, scale=0.4) + 0.5
    # Exact in bfloat16, and never on a pixel, where bilinear sampling has no derivative.
    locations = ((locations * 64).floor() + 0.5) / 64
    weights = random(2, queries, 2, 4, seed=2).softmax(-1).reshape(2, queries, 2, 2, 2)
    return [value, locations, weights]


def attend(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """The branch that mmcv takes on a GPU."""
    starts = torch.tensor([0, 12])
    return MultiScaleDeformableAttnFunction.apply(
        value, torch.tensor(SHAPES), starts, locations, weights, 64
    )


def attend_by_loop(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    return references.deformable_attention(value, SHAPES, locations, weights)


@pytest.mark.parametrize("queries", [0, 1, 3])
def test_deformable_attention_follows_the_loop(queries):
    check_against_loop(attend, attend_by_loop, attention_inputs(queries))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deformable_attention_in_half_precision_follows_the_loop(dtype):
    inputs = [tensor.to(dtype) for tensor in attention_inputs()]
    check_against_loop(attend, attend_by_loop, inputs)


def test_deformable_attention_of_non_contiguous_input_follows_the_loop():
    check_against_loop(attend, attend_by_loop, strided(attention_inputs()))


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
