"""The two convolution blocks the neck and the head are made of."""

from __future__ import annotations

from torch import nn


def _conv(in_channels: int, out_channels: int, kernel: int, groups: int = 1) -> nn.Conv2d:
    """A convolution that starts like those of torchvision's MobileNetV2.

    PyTorch's default weights are smaller; behind a BatchNorm that only makes the first gradients
    larger, and Adam remembers them for a thousand steps.
    """
    conv = nn.Conv2d(
        in_channels, out_channels, kernel, padding=kernel // 2, groups=groups, bias=False
    )
    nn.init.kaiming_normal_(conv.weight, mode="fan_out")
    return conv


def conv_bn(in_channels: int, out_channels: int, kernel: int = 1) -> nn.Sequential:
    """A convolution with BatchNorm and ReLU6 that keeps the resolution."""
    return nn.Sequential(
        _conv(in_channels, out_channels, kernel),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    )


def separable_conv_bn(in_channels: int, out_channels: int) -> nn.Sequential:
    """A depthwise 3 x 3 and a pointwise convolution, each with BatchNorm and ReLU6."""
    return nn.Sequential(
        _conv(in_channels, in_channels, 3, groups=in_channels),
        nn.BatchNorm2d(in_channels),
        nn.ReLU6(inplace=True),
        _conv(in_channels, out_channels, 1),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    )
