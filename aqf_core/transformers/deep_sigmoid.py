"""Deep sigmoidal flow: mixtures of sigmoids through a logit, with emitted weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .base import LOG_SCALE_LIMIT, Direction, Transformer, bounded
from .positive import exp_bounded
from .row_sampling import Bounded, RowSampler

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

    def sampler(self, z: Tensor) -> Callable[[int, Tensor], None]:
        if self.direction == "cdf" or self.layers > 1 or z.device.type != "cpu":
            return super().sampler(z)
        return DeepSigmoidSampler(self, z)

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
            g = _untangle(a)
            line = steepness * (g.unsqueeze(-1) - centre)
            below = log_weight + functional.logsigmoid(line)
            above = log_weight + functional.logsigmoid(-line)
            log_low, log_high = below.logsumexp(-1), above.logsumexp(-1)
            if slope:
                # d logit(p) = dp / (p (1 - p)), dp = sum_i w_i s_i sigmoid(x_i) sigmoid(-x_i).
                rise = (below + above - log_weight + steepness.log()).logsumexp(-1)
                rise = (rise - log_low - log_high + _log_untangle_slope(a)).exp()
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


def _untangle(a: Tensor) -> Tensor:
    """g(a), the inverse of logit((sigmoid(x - c) + sigmoid(x + c)) / 2)."""
    inner = _inner(a)
    return 0.5 * a + torch.asinh(COSH * torch.sinh(0.5 * inner)) + 0.5 * (a - inner)


def _log_untangle_slope(a: Tensor) -> Tensor:
    """log g'(a)."""
    half = 0.5 * _inner(a)
    sinh, cosh = COSH * torch.sinh(half), COSH * torch.cosh(half)
    return (0.5 + 0.5 * cosh * torch.rsqrt(1.0 + sinh * sinh)).log()


def _inner(a: Tensor) -> Tensor:
    return a.clamp(-40.0, 40.0)  # further out g is linear in floating point, and sinh overflows


class DeepSigmoidSampler(RowSampler):
    """One layer in place, as a ratio of sums: logit(p) = log(p / (1 - p)).

    Weights need not sum to 1 for it. The sums underflow where every unit is far in the same tail;
    then, and only then, the logarithms of `DeepSigmoid.core` take their place.
    """

    def __init__(self, transformer: DeepSigmoid, z: Tensor) -> None:
        super().__init__(z)
        self.transformer, self.g = transformer, _untangle(z.view(len(z), self.n)).unbind(0)
        units, n = transformer.units, self.n
        self.sizes = [1, 1 + 2 * units, units]
        limits = [LOG_SCALE_LIMIT, *[LOG_WEIGHT_LIMIT] * units, *[LOG_SLOPE_LIMIT] * units]
        memory = z.new_empty(1 + 4 * units, n)
        rows, self.line, self.sum = torch.split(memory, [1 + 2 * units, units, units])
        self.bounded = Bounded(limits, rows)
        self.scale, self.weight, self.steepness = torch.split(rows, [1, units, units])
        self.gains = transformer.gains.to(z.dtype).unsqueeze(1)
        self.centres = transformer.centres.to(z.dtype).unsqueeze(1)

    def evaluate(self, j: int, z: Tensor, h: Tensor) -> None:
        loc, raw, move = torch.split(h, self.sizes)
        self.bounded(raw).exp_()
        line = torch.mul(move, self.gains, out=self.line).add_(self.centres)
        ratio = torch.sub(self.g[j], line, out=line).mul_(self.steepness).exp_()  # p / (1 - p)
        above = self.weight.div_(torch.add(ratio, 1.0, out=self.sum))
        rest = above.sum(0)
        value = above.mul_(ratio).sum(0).div_(rest).log_().lerp_(z, SKIP)
        if math.isfinite(value.sum().item()):
            torch.addcmul(loc[0], self.scale[0], value, out=z)
        else:
            z.copy_(self.transformer.from_base(z, h.t()))
