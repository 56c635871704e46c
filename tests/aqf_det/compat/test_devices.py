"""Results live where the inputs live.

Fake tensors carry a device without needing one, so a stray CPU tensor inside an op shows anywhere.
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
