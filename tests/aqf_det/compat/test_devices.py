"""Results live where the inputs live.

Fake tensors carry a device without needing one, so a stray CPU tensor inside an op shows anywhere.
Ops whose shapes depend on the numbers need real ones: there, whatever is made without naming a
device is made on the meta device, which does not mix with the CPU tensors it is given.
"""

import pytest
import torch
from mmcv.ops import (
    deform_conv2d,
    modulated_deform_conv2d,
    roi_align,
    sigmoid_focal_loss,
    softmax_focal_loss,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from aqf_det.compat import ops


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device="cuda")


def labels() -> torch.Tensor:
    return torch.zeros(5, dtype=torch.long, device="cuda")


def backward_of_focal_loss(op, shape):
    def run():
        filled = on_gpu(*shape)
        arguments = [on_gpu(5, 4), labels(), on_gpu(4)]
        if op is ops.softmax_focal_loss_backward:
            arguments.append(on_gpu(5))
        op(*arguments, filled, gamma=2.0, alpha=0.25)
        return filled

    return run


CASES = {
    "sigmoid": lambda: sigmoid_focal_loss(on_gpu(5, 4), labels(), 2.0, 0.25, on_gpu(4), "sum"),
    "softmax": lambda: softmax_focal_loss(on_gpu(5, 4), labels(), 2.0, 0.25, on_gpu(4), "sum"),
    "sigmoid backward": backward_of_focal_loss(ops.sigmoid_focal_loss_backward, (5, 4)),
    "softmax backward": backward_of_focal_loss(ops.softmax_focal_loss_backward, (5, 4)),
    "align": lambda: roi_align(on_gpu(2, 4, 8, 8), on_gpu(3, 5), (2, 2), 1.0, 2, "avg", True),
    "align max": lambda: roi_align(on_gpu(2, 4, 8, 8), on_gpu(3, 5), (2, 2), 1.0, 2, "max", True),
    "deform v1": lambda: deform_conv2d(on_gpu(2, 4, 8, 8), on_gpu(2, 18, 6, 6), on_gpu(4, 4, 3, 3)),
    "deform v2": lambda: modulated_deform_conv2d(
        on_gpu(2, 4, 8, 8), on_gpu(2, 18, 6, 6), on_gpu(2, 9, 6, 6), on_gpu(4, 4, 3, 3), on_gpu(4)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_lives_on_the_device_of_the_input(name):
    with FakeTensorMode(), torch.no_grad():
        assert CASES[name]().device.type == "cuda"


@pytest.fixture
def elsewhere_by_default():
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def here(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, device="cpu", dtype=dtype)


def roi_pool() -> list[torch.Tensor]:
    features, rois, output = here(2, 3, 8, 8), here(4, 5), here(4, 3, 2, 2)
    argmax = here(4, 3, 2, 2, dtype=torch.int32)
    ops.roi_pool_forward(features, rois, output, argmax, 2, 2, 1.0)
    ops.roi_pool_backward(here(4, 3, 2, 2), rois, argmax, features, 2, 2, 1.0)
    return [output, argmax, features]


def roi_align_max() -> list[torch.Tensor]:
    features, rois, output = here(2, 3, 8, 8), here(4, 5), here(4, 3, 2, 2)
    rois[:, 3:] = 5
    rows, columns = here(4, 3, 2, 2), here(4, 3, 2, 2)
    geometry = (2, 2, 1.0, 0, 0, True)
    ops.roi_align_forward(features, rois, output, rows, columns, *geometry)
    ops.roi_align_backward(here(4, 3, 2, 2), rois, rows, columns, features, *geometry)
    return [output, rows, columns, features]


def attention() -> list[torch.Tensor]:
    value, shapes = here(1, 4, 2, 3), 2 * here(1, 2, dtype=torch.long)
    locations, weights = here(1, 5, 2, 1, 2, 2), here(1, 5, 2, 1, 2)
    given = (value, shapes, 0 * shapes[:, 0], locations, weights)
    output = ops.ms_deform_attn_forward(*given, 64)
    grads = [torch.empty_like(tensor) for tensor in (value, locations, weights)]
    ops.ms_deform_attn_backward(*given, here(1, 5, 6), *grads, 64)
    return [output, *grads]


@pytest.mark.parametrize(
    "run",
    [
        lambda: [ops.nms(here(5, 4), here(5), 0.5, 0)],
        lambda: [ops.softnms(here(5, 4), here(5), here(5, 5), 0.5, 0.5, 0.1, 1, 0)],
        roi_pool,
        roi_align_max,
        attention,
    ],
    ids=["nms", "softnms", "roi pool", "roi align max", "attention"],
)
def test_nothing_is_made_on_another_device(run, elsewhere_by_default):
    for result in run():
        assert result.device.type == "cpu" and result.isfinite().all()
