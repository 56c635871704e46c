"""Deep sigmoidal flow: mixtures of sigmoids through a logit, with emitted weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from .base import Direction, Transformer, bounded
from .positive import exp_bounded

__all__ = ["DeepSigmoid"]

LOG_SLOPE_LIMIT = 6.0
LOG_WEIGHT_LIMIT = 12.0
# Share of the linear part of a layer, which keeps plateaus from becoming flat.
SKIP = 1e-3
# Half the units of a layer start with their centre at -SPREAD, the others at +SPREAD.
SPREAD = 2.0
COSH = math.cosh(SPREAD)

Layer = tuple[Tensor, Tensor, Tensor]


class DeepSigmoid(Transformer):
    """Layers of mixtures of sigmoids (Huang et al. 2018), with s_i > 0 and sum_i w_i = 1:

        a -> (1 - e) logit(sum_i w_i sigmoid(s_i (g(a) - m_i))) + e a,     e = 0.001

    Units that start alike would sit on a saddle point of the loss: moving them together only shifts
    and stretches the distribution. So half of the centres m_i start at -c and half at +c, and g is
    the inverse of that initial mixture, which happens to be elementary:

        g(a) = a / 2 + asinh(cosh(c) sinh(a / 2))

    Zero parameters therefore give the identity. The logit is a generalised mean of the lines
    s_i (g - m_i): it lies between their minimum and maximum, which makes the tails linear and
    brackets the inverse.

    Args:
        direction: "quantile" or "cdf".
        units: number of sigmoids per layer, even.
        layers: number of layers.

    Example:
        >>> t = DeepSigmoid()
        >>> t.quantile(torch.tensor([0.025, 0.975]), torch.zeros(1, t.n_params))
        tensor([-1.9600,  1.9600])
    """

    gains: Tensor
    centres: Tensor

    def __init__(self, direction: Direction = "quantile", units: int = 8, layers: int = 1) -> None:
        if units < 2 or units % 2 or layers < 1:
            raise ValueError(
                f"units must be even and layers positive, got units={units} and layers={layers}."
            )
        super().__init__((units,) * (3 * layers), direction)
        self.units, self.layers = units, layers
        # Gains of different size and sign let the units of each half part as well.
        gains = 4.0 * ((2.0 * torch.arange(units) + 1.0) / units - 1.0)
        self.register_buffer("gains", gains, persistent=False)
        side = 2.0 * (torch.arange(units) % 2) - 1.0
        self.register_buffer("centres", SPREAD * side, persistent=False)

    def prepare(self, *raw: Tensor) -> list[Layer]:
        """Per layer log weights, slopes and centres, (..., units) each."""
        layers = []
        for weight, slope, move in zip(raw[::3], raw[1::3], raw[2::3], strict=True):
            logits = bounded(weight, LOG_WEIGHT_LIMIT)
            log_weight = logits - logits.logsumexp(-1, keepdim=True)
            centre = self.centres.to(move.dtype) + self.gains.to(move.dtype) * move
            layers.append((log_weight, exp_bounded(slope, LOG_SLOPE_LIMIT), centre))
        return layers

    def core(self, a: Tensor, shape: list[Layer], slope: bool) -> tuple[Tensor, Tensor | None]:
        total: Tensor | None = None
        for log_weight, steepness, centre in shape:
            g, log_g_slope = _untangle(a)
            line = steepness * (g.unsqueeze(-1) - centre)
            below = log_weight + functional.logsigmoid(line)
            above = log_weight + functional.logsigmoid(-line)
            log_low, log_high = below.logsumexp(-1), above.logsumexp(-1)
            if slope:
                # d logit(p) = dp / (p (1 - p)), dp = sum_i w_i s_i sigmoid(x_i) sigmoid(-x_i).
                rise = (below + above - log_weight + steepness.log()).logsumexp(-1)
                rise = (rise - log_low - log_high + log_g_slope).exp()
                rise = ((1.0 - SKIP) * rise + SKIP).log()
                total = rise if total is None else total + rise
            a = (1.0 - SKIP) * (log_low - log_high) + SKIP * a
        return a, total

    def bracket(self, b: Tensor, shape: list[Layer]) -> tuple[Tensor, Tensor]:
        # |g(a) - a| < log cosh(c), so the solutions of (1 - e) s_i (g - m_i) + e g = b bound g, and
        # with it a, up to that much.
        margin = 2.0 * math.log(COSH)
        low = high = b
        for _, steepness, centre in reversed(shape):
            steep = (1.0 - SKIP) * steepness
            low = ((low.unsqueeze(-1) + steep * centre) / (steep + SKIP)).amin(-1) - margin
            high = ((high.unsqueeze(-1) + steep * centre) / (steep + SKIP)).amax(-1) + margin
        return low, high

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, units={self.units}, layers={self.layers}"


def _untangle(a: Tensor) -> tuple[Tensor, Tensor]:
    """g(a), the inverse of logit((sigmoid(x - c) + sigmoid(x + c)) / 2), and log g'(a)."""
    inner = a.clamp(-40.0, 40.0)  # further out g is linear in floating point, and sinh overflows
    sinh, cosh = COSH * torch.sinh(0.5 * inner), COSH * torch.cosh(0.5 * inner)
    g = 0.5 * a + torch.asinh(sinh) + 0.5 * (a - inner)
    return g, (0.5 + 0.5 * cosh * torch.rsqrt(1.0 + sinh * sinh)).log()
