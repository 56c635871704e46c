"""The two convolution blocks the neck and the head are made of."""

from __future__ import annotations

from torch import nn


def conv_bn(in_channels: int, out_channels: int, kernel: int = 1) -> nn.Sequential:
    """A convolution with BatchNorm and ReLU6 that keeps the resolution."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    )


def separable_conv_bn(in_channels: int, out_channels: int) -> nn.Sequential:
    """A depthwise 3 x 3 and a pointwise convolution, each with BatchNorm and ReLU6."""
    return nn.Sequential(
        nn.Conv2d(in_channels, in_channels, 3, padding=1, groups=in_channels, bias=False),
        nn.BatchNorm2d(in_channels),
        nn.ReLU6(inplace=True),
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    )
