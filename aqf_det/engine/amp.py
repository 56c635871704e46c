"""Mixed precision where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """bfloat16 autocast on the CPU; mmengine's ``AmpOptimWrapper`` insists on an accelerator.

    bfloat16 has the exponent range of float32, so no loss scaling is needed.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Run the forward pass under autocast."""
        with super().optim_context(model), torch.autocast("cpu", dtype=torch.bfloat16):
            yield
