"""What a network can say about the next value: one object per method.

An output turns parameters h into the distribution of a standardised value: how many parameters it
needs, the loss of an observation, and a draw from the noise. The three forecasters differ by this
object only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..interpolation import InterpolatedPredictive
from ..levels import LevelStrategy
from ..losses import gaussian_nll, pinball_loss
from ..normal import base_to_level
from ..objectives import conditional_loss
from ..spaces import OutputSpace
from ..transformers import Transformer, make_transformer
from ..validation import lookup

__all__ = [
    "OUTPUTS",
    "GaussianOutput",
    "Output",
    "QuantileFlowOutput",
    "QuantileGridOutput",
    "StudentTOutput",
    "make_output",
]

# softplus(UNIT) = 1: zero parameters mean unit scale.
UNIT = math.log(math.e - 1.0)
SMALLEST = 1e-4


def _positive(raw: Tensor) -> Tensor:
    return F.softplus(raw + UNIT) + SMALLEST


class Output(nn.Module):
    """A distribution family for one step.

    Attributes:
        n_params: number of parameters P per step.
        exact: whether `sample` is the quantile function of its noise, without further chance.
        homogeneous: whether the loss of c y is c times the loss of y, as for quantile losses; the
            loss of a value in the units of its window then has the size of these units. A
            likelihood only changes by a constant.
        paths: rolled-out paths per window that the last part of training learns from, 0 for none;
            needs a `sample` that can be differentiated.
    """

    n_params: int
    paths = 0
    exact = True
    homogeneous = True

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        """Loss (...) of values y (...) under parameters h (..., P)."""
        raise NotImplementedError

    def sample(self, z: Tensor, h: Tensor) -> Tensor:
        """One value (N,) per column of h (P, N) from standard normal noise z (N,)."""
        raise NotImplementedError

    def sampler(self, z: Tensor, h: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """`sample`, or a faster way for many calls with the shapes of z and h."""
        return self.sample

    def quantiles(self, z: Tensor, h: Tensor) -> Tensor:
        """Quantiles (..., K) at base values z (..., K) under parameters h (..., P), if `exact`."""
        raise NotImplementedError


class QuantileFlowOutput(Output):
    """A monotone transformer: the quantile function of the next value, trained by its loss.

    Args:
        transformer: name in `TRANSFORMERS` or an object.
        levels: number of levels per value and step.
        scheme: how they are drawn, see `LEVELS`.
        paths: rolled-out paths per window in the last part of training, see `rollout`; 0 for none.
        **options: of the transformer.

    Example:
        >>> output = QuantileFlowOutput()
        >>> output.loss(torch.zeros(5, output.n_params), torch.zeros(5)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        transformer: str | Transformer = "spline",
        levels: int = 8,
        scheme: str = "lattice",
        paths: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.paths = paths
        self.transformer = make_transformer(transformer, **options)
        self.levels = LevelStrategy(scheme, levels)
        self.space = OutputSpace()
        self.n_params = self.transformer.n_params

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return conditional_loss(self.transformer, self.space, y, h, "quantile", self.levels)

    def sample(self, z: Tensor, h: Tensor) -> Tensor:
        return self.transformer.from_base(z, h.t())

    def sampler(self, z: Tensor, h: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        values = torch.empty_like(z).unsqueeze(0)
        draw = self.transformer.sampler(values)

        def sample(z: Tensor, h: Tensor) -> Tensor:
            values[0] = z
            draw(0, h.t())
            return values[0].clone()  # the next call writes there again

        return sample

    def quantiles(self, z: Tensor, h: Tensor) -> Tensor:
        return self.transformer.from_base(z, h.unsqueeze(-2))


class GaussianOutput(Output):
    """Mean and standard deviation, trained by likelihood: DeepAR."""

    n_params = 2
    homogeneous = False

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        loc, raw = h.unbind(-1)
        return gaussian_nll(loc, _positive(raw), y, reduction="none")

    def sample(self, z: Tensor, h: Tensor) -> Tensor:
        return torch.addcmul(h[0], _positive(h[1]), z)

    def quantiles(self, z: Tensor, h: Tensor) -> Tensor:
        return torch.addcmul(h[..., :1], _positive(h[..., 1:]), z)


class StudentTOutput(Output):
    """Location, scale and degrees of freedom of Student's t, trained by likelihood: DeepAR's
    heavy-tailed variant. The degrees of freedom exceed 2."""

    n_params = 3
    exact = False
    homogeneous = False

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        loc, raw, freedom = h.unbind(-1)
        df, scale = 2.0 + _positive(freedom + 2.0), _positive(raw)
        x = (y - loc) / scale
        half = 0.5 * (df + 1.0)
        return (
            torch.lgamma(0.5 * df)
            - torch.lgamma(half)
            + 0.5 * torch.log(df * math.pi)
            + half * torch.log1p(x * x / df)
            + scale.log()
        )

    def sample(self, z: Tensor, h: Tensor) -> Tensor:
        half = 0.5 * (2.0 + _positive(h[2] + 2.0))
        # t = z / sqrt(chi2 / df) with chi2 / df = gamma(df / 2) / (df / 2)
        chi = torch._standard_gamma(half) / half
        return torch.addcmul(h[0], _positive(h[1]), z * chi.clamp_min(1e-6).rsqrt())


class QuantileGridOutput(Output):
    """A few quantiles that cannot cross, trained by pinball loss: MQ-RNN.

    In between they are interpolated linearly; beyond the outer ones the tails are exponential.

    Args:
        levels: increasing.

    Example:
        >>> output = QuantileGridOutput()
        >>> values = output.sample(torch.linspace(-3, 3, 5), torch.zeros(5, 5))
        >>> bool((values.diff() > 0).all())
        True
    """

    def __init__(self, levels: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)) -> None:
        super().__init__()
        self.register_buffer("grid", torch.tensor(levels), persistent=False)
        self.n_params = len(levels)
        # Zero parameters give the quantiles of a standard normal variable.
        start = torch.special.ndtri(self.grid.double())
        gaps = torch.log(torch.expm1(start.diff())).float()
        self.register_buffer("gaps", gaps, persistent=False)
        self.register_buffer("first", start[:1].float(), persistent=False)

    grid: Tensor
    gaps: Tensor
    first: Tensor

    def knots(self, h: Tensor) -> Tensor:
        """Quantiles (..., P) at the levels of the grid."""
        rises = F.softplus(h[..., 1:] + self.gaps)
        return torch.cat([h[..., :1] + self.first, rises], -1).cumsum(-1)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return pinball_loss(self.knots(h), y.unsqueeze(-1), self.grid, "none").mean(-1)

    def sample(self, z: Tensor, h: Tensor) -> Tensor:
        dist = InterpolatedPredictive(self.grid, self.knots(h.t()), validate_args=False)
        return dist.icdf(base_to_level(z))

    def quantiles(self, z: Tensor, h: Tensor) -> Tensor:
        dist = InterpolatedPredictive(self.grid, self.knots(h), validate_args=False)
        levels = base_to_level(z).expand(*h.shape[:-1], -1).movedim(-1, 0)
        return dist.icdf(levels).movedim(0, -1)


OUTPUTS: dict[str, type[Output]] = {
    "flow": QuantileFlowOutput,
    "gaussian": GaussianOutput,
    "student-t": StudentTOutput,
    "quantiles": QuantileGridOutput,
}


def make_output(name: str, **options: Any) -> Output:
    """An output by name.

    Example:
        >>> make_output("gaussian").n_params
        2
    """
    return lookup(name, OUTPUTS, "output")(**options)
