"""Takes upstream's GPU branches on a machine without one."""

import pytest
import torch
from torch import Tensor


class OnGpu(Tensor):
    """A CPU tensor that says it lives on a GPU, which is all that mmcv and mmdet ask."""

    is_cuda = True


def pretend_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("mmcv.ops.multi_scale_deform_attn.IS_CUDA_AVAILABLE", True)
