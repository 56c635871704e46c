"""The detector's depthwise-separable feature pyramid."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmdet.registry import MODELS
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from .blocks import conv_bn, separable_conv_bn


def _stack(in_channels: int, width: int) -> nn.Sequential:
    """1x1 reduce, then twice (separable expand, 1x1 reduce): YOLOv3's five convolutions."""
    return nn.Sequential(
        conv_bn(in_channels, width),
        separable_conv_bn(width, 2 * width),
        conv_bn(2 * width, width),
        separable_conv_bn(width, 2 * width),
        conv_bn(2 * width, width),
    )


@MODELS.register_module()
class SeparableYOLONeck(BaseModule):
    """YOLOv3's top-down neck with depthwise-separable convolutions.

    Args:
        in_channels: Channels of the backbone's maps, finest first.
        out_channels: Channels of the output maps, finest first.
    """

    def __init__(
        self,
        in_channels: Sequence[int] = (32, 96, 1280),
        out_channels: Sequence[int] = (128, 256, 512),
    ) -> None:
        super().__init__()
        if len(in_channels) != len(out_channels):
            raise ValueError(
                f"in_channels {tuple(in_channels)} and out_channels {tuple(out_channels)} must "
                "have the same length."
            )
        self.out_channels = tuple(out_channels)
        coarser = [*out_channels[1:], 0]
        self.lateral = nn.ModuleList(
            conv_bn(wide, narrow) for narrow, wide in zip(out_channels, coarser[:-1], strict=False)
        )
        extra = [*out_channels[:-1], 0]
        self.stacks = nn.ModuleList(
            _stack(c_in + e, c_out)
            for c_in, e, c_out in zip(in_channels, extra, out_channels, strict=True)
        )

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Backbone maps -> pyramid maps of the same resolutions, finest first."""
        outputs = [self.stacks[-1](maps[-1])]
        for i in range(len(maps) - 2, -1, -1):
            above = F.interpolate(self.lateral[i](outputs[0]), size=maps[i].shape[-2:])
            outputs.insert(0, self.stacks[i](torch.cat([maps[i], above], dim=1)))
        return tuple(outputs)
