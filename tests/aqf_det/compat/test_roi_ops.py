"""RoIAlign and RoIPool against loops, forward and backward."""

import pytest
import torch
from mmcv.ops import roi_align, roi_pool
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


# Op, its loop, what follows the features and the boxes.
POOLINGS = {
    "align": (roi_align, references.roi_align, ((2, 3), 0.5, 0, "avg", True)),
    "align max": (roi_align, references.roi_align, ((2, 3), 0.5, 2, "max", True)),
    "pool": (roi_pool, references.roi_pool, ((2, 3), 0.5)),
}


def values_and_gradient(op, x: Tensor, *args) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    output = op(x, *args)
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randint(-4, 5, output.shape, generator=generator)  # exact in every type
    return output.detach(), torch.autograd.grad(output, x, upstream.to(output))[0]


def check_against_loop(op, loop, x: Tensor, rois: Tensor, *args) -> None:
    value, gradient = values_and_gradient(op, x, rois, *args)
    exact, exact_gradient = values_and_gradient(loop, x.double(), rois.double(), *args)
    torch.testing.assert_close(value, exact.to(x.dtype))
    torch.testing.assert_close(gradient, exact_gradient.to(x.dtype))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_follows_the_loop(sampling_ratio, mode, aligned):
    args = ((2, 3), 0.5, sampling_ratio, mode, aligned)
    check_against_loop(roi_align, references.roi_align, features(), ROIS, *args)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
def test_roi_pool_follows_the_loop(scale):
    check_against_loop(roi_pool, references.roi_pool, features(), ROIS, (2, 3), scale)


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("rois", [ROIS[:0], ROIS[:1], ROIS[1:3]], ids=["no", "one", "identical"])
def test_no_box_one_box_and_identical_boxes_follow_the_loop(rois, name):
    op, loop, args = POOLINGS[name]
    check_against_loop(op, loop, features(), rois, *args)


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_follows_the_loop(dtype, name):
    op, loop, args = POOLINGS[name]
    check_against_loop(op, loop, features(dtype), ROIS.to(dtype), *args)


@pytest.mark.parametrize("name", POOLINGS)
def test_non_contiguous_input_follows_the_loop(name):
    op, loop, args = POOLINGS[name]
    strided = features().transpose(2, 3).contiguous().transpose(2, 3)
    rois = torch.cat([ROIS, ROIS], dim=1)[:, :5]
    assert not strided.is_contiguous() and not rois.is_contiguous()
    check_against_loop(op, loop, strided, rois, *args)


@pytest.mark.parametrize("name", POOLINGS)
def test_a_non_contiguous_gradient_is_the_same(name):
    op, _, args = POOLINGS[name]
    plain, other = features().requires_grad_(), features().requires_grad_()
    upstream = torch.randn(7, 2, 3, 2, dtype=torch.float64).transpose(2, 3)
    op(plain, ROIS, *args).backward(upstream.contiguous())
    op(other, ROIS, *args).backward(upstream)
    torch.testing.assert_close(other.grad, plain.grad)


@pytest.mark.parametrize("corners", [[6.0, 6.0, 2.0, 2.0], [5.4, 2.0, 4.3, 6.0]])
def test_a_malformed_box_pools_to_zero_and_gets_no_gradient(corners):
    inverted = torch.tensor([[0.0, *corners]], dtype=torch.float64)
    for op, args in (
        (roi_pool, ((2, 2), 1.0)),
        (roi_align, ((2, 2), 1.0, 0, "max", True)),
        (roi_align, ((2, 2), 1.0, 0, "avg", True)),
    ):
        value, gradient = values_and_gradient(op, features(), inverted, *args)
        assert not value.any() and not gradient.any()


def test_roi_pool_in_pieces_is_the_same(monkeypatch):
    whole = roi_pool(features(), ROIS, (2, 3), 0.5)
    monkeypatch.setattr("aqf_det.compat.ops.roi_pool._CHUNK_ELEMENTS", 1)
    torch.testing.assert_close(roi_pool(features(), ROIS, (2, 3), 0.5), whole)
