"""Features of a box -> distribution over its four coordinates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aqf_core.conditioners import Independent
from aqf_core.flows import AutoregressiveQuantileFlow
from aqf_core.losses import gaussian_kl_loss

from .box_distribution import BoxDistribution, SidePredictive
from .flow_options import FlowOptions
from .sides import Sides


class BoxFlow(nn.Module):
    """A flow over the residuals of a box's sides, given features of the box.

    The flow starts as the identity: until it is trained, the distribution is exactly the Gaussian
    that it is given (for transformers whose zero parameters are the identity: affine, spline,
    deep_sigmoid, unconstrained; close to it for the others). It never moves the point box.

    Args:
        context: Number of features of a box.
        options: Kind, transformer, dependence and objective.
    """

    def __init__(self, context: int, options: FlowOptions) -> None:
        super().__init__()
        self.options = options
        self.joint = options.dependence == "autoregressive"
        self.flow = AutoregressiveQuantileFlow(
            features=4,
            context=context,
            transformer=options.transformer,
            conditioner="masked_mlp" if self.joint else "independent",
            hidden=tuple(options.hidden),
            direction="cdf" if options.kind == "cdf" else "quantile",
            transformer_options=options.transformer_options,
            conditioner_options={"init_scale": 0.0},
        )

    def loss(self, features: Tensor, mean: Tensor, sigma: Tensor, target: Tensor) -> Tensor:
        """The flow's objective per box, in standard deviations of the stage-1 Gaussian.

        Args:
            features: (..., N, context).
            mean: (..., N, 4) point boxes in pixels.
            sigma: (..., N, 4) stage-1 standard deviations in pixels.
            target: (N, 4) ground truths in pixels.

        Returns:
            (..., N), the sum over the four sides.
        """
        residual = self._sides(mean, sigma).to_residual(target)
        if self.options.loss == "kl":
            h = self.flow.conditioner(residual, features)
            loc, scale = self.flow.transformer.location_scale(h)
            return gaussian_kl_loss(loc, 2 * scale.log(), residual, reduction="none").sum(-1)
        return self.flow.loss(
            residual,
            features,
            objective=self.options.loss,
            levels=self.options.levels,
            reduction="none",
        )

    def forward(self, features: Tensor, mean: Tensor, sigma: Tensor) -> BoxDistribution:
        """The distribution of N boxes from T passes: features (T, N, context), boxes (T, N, 4)."""
        sides = self._sides(mean, sigma)
        conditioner = self.flow.conditioner
        if isinstance(conditioner, Independent):
            h = conditioner.parameters_of(features)
            return BoxDistribution.independent(SidePredictive(sides, self.flow.transformer, h))

        def sampler(z: Tensor, which: Tensor) -> Tensor:
            boxes = [
                sides[t].to_pixels(self.flow.from_base(z[which == t][:, None], features[t]))
                for t in range(len(features))
            ]
            out = torch.empty(len(z), *mean.shape[1:], dtype=boxes[0].dtype, device=z.device)
            for t, part in enumerate(boxes):
                out[which == t] = part
            return out

        return BoxDistribution(len(mean), mean.shape[1], sampler, None, mean)

    def _sides(self, mean: Tensor, sigma: Tensor) -> Sides:
        return Sides(mean, sigma, valid=self.joint)
