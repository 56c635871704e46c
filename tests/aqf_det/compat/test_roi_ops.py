"""RoIAlign and RoIPool against loops, forward and backward."""

import pytest
import torch
from mmcv.ops import RoIAlign, RoIPool, roi_align, roi_pool
from torch import Tensor

from tests.aqf_det.compat import references

ROIS = torch.tensor(
    [
        [0, 3.2, 1.7, 11.9, 13.1],
        [1, 0.0, 0.0, 7.0, 3.0],
        [1, 0.0, 0.0, 7.0, 3.0],  # the same box again
        [0, -6.0, -4.0, 5.5, 9.0],  # partly outside
        [0, 30.0, 28.0, 60.0, 50.0],  # wholly outside
        [1, 5.0, 5.0, 5.4, 5.3],  # smaller than a pixel
        [0, 4.0, 6.0, 4.0, 6.0],  # no area
    ],
    dtype=torch.float64,
)


def features(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 2, 7, 9, generator=generator, dtype=torch.float64).to(dtype)


def values_and_gradient(op, *args) -> tuple[Tensor, Tensor]:
    x = features().requires_grad_()
    output = op(x, *args)
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    return output.detach(), torch.autograd.grad(output, x, upstream)[0]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_follows_the_loop(sampling_ratio, mode, aligned):
    args = (ROIS, (2, 3), 0.5, sampling_ratio, mode, aligned)
    value, gradient = values_and_gradient(roi_align, *args)
    expected, expected_gradient = values_and_gradient(references.roi_align, *args)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
def test_roi_pool_follows_the_loop(scale):
    args = (ROIS, (2, 3), scale)
    value, gradient = values_and_gradient(roi_pool, *args)
    expected, expected_gradient = values_and_gradient(references.roi_pool, *args)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("corners", [[6.0, 6.0, 2.0, 2.0], [5.4, 2.0, 4.3, 6.0]])
def test_a_malformed_box_pools_to_zero_and_gets_no_gradient(corners):
    inverted = torch.tensor([[0.0, *corners]], dtype=torch.float64)
    for op, args in (
        (roi_pool, (inverted, (2, 2), 1.0)),
        (roi_align, (inverted, (2, 2), 1.0, 0, "max", True)),
        (roi_align, (inverted, (2, 2), 1.0, 0, "avg", True)),
    ):
        value, gradient = values_and_gradient(op, *args)
        assert not value.any() and not gradient.any()


@pytest.mark.parametrize(
    "op", [RoIAlign((2, 3), 0.5), RoIAlign((2, 3), 0.5, pool_mode="max"), RoIPool((2, 3), 0.5)]
)
def test_no_boxes_give_no_features_and_a_zero_gradient(op):
    x = features().requires_grad_()
    output = op(x, torch.zeros(0, 5, dtype=torch.float64))
    assert output.shape == (0, 2, 2, 3)
    output.sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "op", [RoIAlign((2, 3), 0.5), RoIAlign((2, 3), 0.5, pool_mode="max"), RoIPool((2, 3), 0.5)]
)
def test_half_precision_is_the_rounded_result_of_single_precision(op, dtype):
    x, rois = features(dtype), ROIS.to(dtype)
    half, single = x.clone().requires_grad_(), x.float().requires_grad_()
    result, expected = op(half, rois), op(single, rois.float())
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected.to(dtype))
    result.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(half.grad, single.grad.to(dtype))


@pytest.mark.parametrize(
    "op", [RoIAlign((2, 3), 0.5), RoIAlign((2, 3), 0.5, pool_mode="max"), RoIPool((2, 3), 0.5)]
)
def test_memory_layout_does_not_matter(op):
    plain = features().requires_grad_()
    strided = features().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    rois = torch.cat([ROIS, ROIS], dim=1)[:, :5]
    assert not strided.is_contiguous() and not rois.is_contiguous()
    upstream = torch.randn(7, 2, 3, 2, dtype=torch.float64).transpose(2, 3)
    op(plain, ROIS).backward(upstream.contiguous())
    op(strided, rois).backward(upstream)
    torch.testing.assert_close(op(strided, rois), op(plain, ROIS))
    torch.testing.assert_close(strided.grad, plain.grad)


def test_roi_pool_in_pieces_is_the_same(monkeypatch):
    whole = roi_pool(features(), ROIS, (2, 3), 0.5)
    monkeypatch.setattr("aqf_det.compat.ops.roi_pool._CHUNK_ELEMENTS", 1)
    torch.testing.assert_close(roi_pool(features(), ROIS, (2, 3), 0.5), whole)
