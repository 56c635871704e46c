"""The alternate branch of the dense head: its own layers in front of a box flow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .box_distribution import BoxDistribution
from .box_flow import BoxFlow
from .coder import OUTWARD
from .flow_options import FlowOptions


class BoxBranch(nn.Module):
    """Reads the trunk's features at chosen cells and predicts the flow of the boxes found there.

    Args:
        channels: Features per cell on each level.
        slots: Boxes per cell; each slot has its own offset, because the slots share the features.
        options: The flow.
    """

    def __init__(self, channels: Sequence[int], slots: int, options: FlowOptions) -> None:
        super().__init__()
        width = options.width
        self.embed = nn.ModuleList(nn.Linear(c, width) for c in channels)
        # The slots of a cell share its features and are told apart by these offsets.
        self.slot = nn.Parameter(torch.zeros(len(channels), slots, width))
        self.norm = nn.LayerNorm(width)
        self.borders = options.borders
        self.box_flow = BoxFlow(width + (12 if self.borders else 8), options)

    def context(
        self,
        features: Sequence[Tensor],
        level: Tensor,
        slot: Tensor,
        mean: Tensor,
        sigma: Tensor,
        frame: Tensor,
    ) -> Tensor:
        """Context (T, N, width + 8) of N boxes, (T, N, width + 12) with borders.

        Args:
            features: Per level the features (T, N_l, c_l) of its boxes, in the order of ``level``.
            level: (N,) level of each box.
            slot: (N,) slot of each box.
            mean: (T, N, 4) point boxes.
            sigma: (T, N, 4) their standard deviations.
            frame: (N, 4) the rectangles of their pictures, in the same pixels.
        """
        passes, count = mean.shape[:2]
        embedded = mean.new_zeros(passes, count, self.norm.normalized_shape[0])
        for i, values in enumerate(features):
            mine = (level == i).nonzero().flatten()
            part = self.embed[i](values) + self.slot[i, slot[mine]]
            embedded = embedded.index_copy(1, mine, part.to(embedded.dtype))
        size = (mean[..., 2:] - mean[..., :2]).clamp_min(1e-3).repeat(1, 1, 2)
        # Uncertainty relative to the box, and the box's own shape and size, all of order one.
        facts = [(sigma / size).log() / 2 + 1, size[..., :2].log() / 2 - 2, self._aspect(size)]
        if self.borders:
            facts.append(self._room(mean, sigma, frame))
        return torch.cat([nn.functional.silu(self.norm(embedded)), *facts], -1)

    @staticmethod
    def _room(mean: Tensor, sigma: Tensor, frame: Tensor) -> Tensor:
        """How far each side may move outwards, in standard deviations on a soft scale."""
        return (mean.new_tensor(OUTWARD) * (frame - mean) / sigma).clamp(-100, 100).asinh() / 2

    @staticmethod
    def _aspect(size: Tensor) -> Tensor:
        ratio = (size[..., :1] / size[..., 1:2]).log()
        return torch.cat([ratio, -ratio], -1)

    def loss(
        self,
        features: Sequence[Tensor],
        level: Tensor,
        slot: Tensor,
        mean: Tensor,
        sigma: Tensor,
        frame: Tensor,
        target: Tensor,
    ) -> Tensor:
        """Flow loss (N,) of ground truths (N, 4); arguments as in :meth:`context` with T = 1."""
        context = self.context(features, level, slot, mean, sigma, frame)
        return self.box_flow.loss(context, mean, sigma, target[None])[0]

    def forward(
        self,
        features: Sequence[Tensor],
        level: Tensor,
        slot: Tensor,
        mean: Tensor,
        sigma: Tensor,
        frame: Tensor,
    ) -> BoxDistribution:
        """The distribution of N boxes; arguments as in :meth:`context`."""
        return self.box_flow(self.context(features, level, slot, mean, sigma, frame), mean, sigma)
