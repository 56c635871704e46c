"""Deep sigmoidal flow: mixtures of sigmoids through a logit, with emitted weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .base import Direction, Transformer, bounded
from .positive import exp_bounded

__all__ = ["DeepSigmoid"]

LOG_SLOPE_LIMIT = 6.0
LOG_WEIGHT_LIMIT = 12.0
SKIP = 1e-3

Layer = tuple[Tensor, Tensor, Tensor]


class DeepSigmoid(Transformer):
    """Layers of mixtures of sigmoids (Huang et al. 2018), with s_i > 0 and sum_i w_i = 1:

        a -> (1 - e) logit(sum_i w_i sigmoid(s_i a + b_i)) + e a,     e = 0.001

    The first part is a generalised mean of the lines s_i a + b_i: it lies between their minimum and
    maximum, which makes its tails linear and brackets its inverse. The second keeps plateaus from
    becoming flat. Zero parameters give the identity; the biases have fixed gains of different size
    and sign, so that the units of a layer part as soon as training starts.

    Args:
        direction: "quantile" or "cdf".
        units: number of sigmoids per layer.
        layers: number of layers.

    Example:
        >>> t = DeepSigmoid()
        >>> t.quantile(torch.tensor([0.025, 0.5]), torch.zeros(1, t.n_params))
        tensor([-1.9600,  0.0000])
    """

    gains: Tensor

    def __init__(self, direction: Direction = "quantile", units: int = 8, layers: int = 1) -> None:
        if units < 1 or layers < 1:
            raise ValueError(f"units and layers must be positive, got {units} and {layers}.")
        super().__init__((units,) * (3 * layers), direction)
        self.units, self.layers = units, layers
        gains = 4.0 * ((2.0 * torch.arange(units) + 1.0) / units - 1.0)
        self.register_buffer("gains", gains, persistent=False)

    def prepare(self, *raw: Tensor) -> list[Layer]:
        """Per layer log weights, slopes and biases, (..., units) each."""
        layers = []
        for weight, slope, bias in zip(raw[::3], raw[1::3], raw[2::3], strict=True):
            logits = bounded(weight, LOG_WEIGHT_LIMIT)
            log_weight = logits - logits.logsumexp(-1, keepdim=True)
            gain = self.gains.to(bias.dtype)
            layers.append((log_weight, exp_bounded(slope, LOG_SLOPE_LIMIT), gain * bias))
        return layers

    def core(self, a: Tensor, shape: list[Layer], slope: bool) -> tuple[Tensor, Tensor | None]:
        total: Tensor | None = None
        for log_weight, steepness, bias in shape:
            line = steepness * a.unsqueeze(-1) + bias
            below = log_weight + functional.logsigmoid(line)
            above = log_weight + functional.logsigmoid(-line)
            log_low, log_high = below.logsumexp(-1), above.logsumexp(-1)
            mean = log_low - log_high
            if slope:
                # d logit(p) = dp / (p (1 - p)), dp = sum_i w_i s_i sigmoid(x_i) sigmoid(-x_i).
                rise = (below + above - log_weight + steepness.log()).logsumexp(-1)
                rise = ((1.0 - SKIP) * (rise - log_low - log_high).exp() + SKIP).log()
                total = rise if total is None else total + rise
            a = (1.0 - SKIP) * mean + SKIP * a
        return a, total

    def bracket(self, b: Tensor, shape: list[Layer]) -> tuple[Tensor, Tensor]:
        low = high = b
        for _, steepness, bias in reversed(shape):
            steep, shift = (1.0 - SKIP) * steepness + SKIP, (1.0 - SKIP) * bias
            low = ((low.unsqueeze(-1) - shift) / steep).amin(-1)
            high = ((high.unsqueeze(-1) - shift) / steep).amax(-1)
        return low, high

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, units={self.units}, layers={self.layers}"
