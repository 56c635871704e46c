"""A network with positive weights on the path of its first input, shared by all conditionals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import LOG_SCALE_LIMIT, Direction, Transformer
from .positive import exp_bounded
from .row_sampling import Bounded, RowSampler

__all__ = ["MonotoneNet"]

LOG_LIMIT = 4.0


class Inputs(NamedTuple):
    """What the context contributes to each hidden layer, (..., units) each, and the linear part."""

    first: Tensor
    second: Tensor
    linear: Tensor


class MonotoneNet(Transformer):
    """A perceptron of (a, h) that increases in a because the weights on a's path are positive.

        x1 = tanh(|W1| a + U1 h + b1)
        x2 = tanh(|W2| x1 + U2 h + b2)
        m(a) = |w3| . x2 + b3 + c a,     c = exp(.) emitted with h

    The weights are parameters of the transformer, shared by all conditionals; the conditioner emits
    the features h that are concatenated to a. The hidden biases b1 start spread out, and the
    network starts close to the identity for h = 0.

    With one hidden layer, m(a) = |w3| . x1 + b3 + c a.

    Args:
        direction: "quantile" or "cdf".
        features: number of features h.
        units: hidden units per layer.
        layers: hidden layers, 2 or 1.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> t = MonotoneNet()
        >>> q = t.quantile(torch.tensor([0.1, 0.5, 0.9]), torch.zeros(1, t.n_params))
        >>> bool((q.diff() > 0.5).all())
        True
    """

    def __init__(
        self,
        direction: Direction = "quantile",
        features: int = 16,
        units: int = 32,
        layers: int = 2,
    ) -> None:
        if layers not in (1, 2):
            raise ValueError(f"layers must be 1 or 2, got {layers}.")
        if features < 1 or units < 1:
            raise ValueError(f"features and units must be positive, got {features} and {units}.")
        super().__init__((features, 1), direction)
        self.units, self.layers = units, layers
        self.weight1 = nn.Parameter(0.5 + torch.rand(units))
        self.context1 = nn.Linear(features, units)
        if layers == 2:
            self.weight2 = nn.Parameter(torch.rand(units, units) * (3.0 / units))
            self.context2 = nn.Linear(features, units)
        self.weight3 = nn.Parameter(torch.ones(units) / units)
        self.bias3 = nn.Parameter(torch.zeros(()))
        with torch.no_grad():
            spread = 3.0 * (2.0 * torch.arange(units) + 1.0) / units - 3.0
            self.context1.bias.copy_(spread * self.weight1)
            if layers == 2:
                self.context2.bias.copy_(spread[torch.randperm(units)] / 3.0)
            # Half of the slope comes from the linear part.
            inputs = self._inputs(torch.zeros(features))
            ends = self._network(torch.tensor([-2.0, 0.0, 2.0]), inputs, False)[0]
            self.weight3.mul_(0.5 * 4.0 / (ends[2] - ends[0]))
            self.bias3.sub_(self._network(torch.zeros(1), inputs, False)[0][0])

    def sampler(self, z: Tensor) -> Callable[[int, Tensor], None]:
        if self.direction == "cdf" or self.layers == 1:
            return super().sampler(z)
        return MonotoneNetSampler(self, z)

    def prepare(self, *raw: Tensor) -> Inputs:
        features, linear = raw
        return self._inputs(features)._replace(
            linear=0.5 * exp_bounded(linear.squeeze(-1), LOG_LIMIT)
        )

    def core(self, a: Tensor, shape: Inputs, slope: bool) -> tuple[Tensor, Tensor | None]:
        value, steep = self._network(a, shape, slope)
        value = value + shape.linear * a
        return value, None if steep is None else (shape.linear + steep).log()

    def _inputs(self, features: Tensor) -> Inputs:
        first = self.context1(features)
        second = self.context2(features) if self.layers == 2 else first
        return Inputs(first, second, torch.zeros(()))

    def _network(self, a: Tensor, shape: Inputs, slope: bool) -> tuple[Tensor, Tensor | None]:
        """m(a) without its linear part and, if asked for, its slope."""
        weight1, weight3 = self.weight1.abs(), self.weight3.abs()
        x = torch.tanh(a.unsqueeze(-1) * weight1 + shape.first)
        steep = (1.0 - x * x) * weight1 if slope else x
        if self.layers == 2:
            weight2 = self.weight2.abs()
            x = torch.tanh(x @ weight2 + shape.second)
            steep = (1.0 - x * x) * (steep @ weight2) if slope else x
        return x @ weight3 + self.bias3, steep @ weight3 if slope else None

    def bracket(self, b: Tensor, shape: Inputs) -> tuple[Tensor, Tensor]:
        bound = self.weight3.detach().abs().sum() + self.bias3.detach().abs()
        reach = (b.abs() + bound) / shape.linear
        return -reach, reach

    def extra_repr(self) -> str:
        sizes = f"features={self.sizes[2]}, units={self.units}, layers={self.layers}"
        return f"{super().extra_repr()}, {sizes}"


class MonotoneNetSampler(RowSampler):
    """Two hidden layers in place: what the features h add to both is one product."""

    def __init__(self, net: MonotoneNet, z: Tensor) -> None:
        super().__init__(z)
        units, n = net.units, self.n
        contexts = (net.context1, net.context2)
        self.context = torch.cat([layer.weight for layer in contexts])
        self.bias = torch.cat([layer.bias for layer in contexts]).unsqueeze(1)
        self.weight1 = net.weight1.abs().unsqueeze(1)
        self.weight2 = net.weight2.abs().t().contiguous()
        self.weight3, self.bias3 = net.weight3.abs().unsqueeze(0), net.bias3
        self.hidden = z.new_empty(2 * units, n)
        self.x1, self.x2 = torch.split(self.hidden, units)
        self.bounded = Bounded([LOG_SCALE_LIMIT, LOG_LIMIT], z.new_empty(2, n))
        self.scale, self.linear = self.bounded.out.unbind(0)
        self.value = z.new_empty(1, n)

    def evaluate(self, j: int, z: Tensor, h: Tensor) -> None:
        self.bounded(h[1 :: len(h) - 2]).exp_()  # the second and the last row
        torch.mm(self.context, h[2:-1], out=self.hidden).add_(self.bias)
        self.x1.addcmul_(self.weight1, z).tanh_()
        self.x2.addmm_(self.weight2, self.x1).tanh_()
        value = torch.mm(self.weight3, self.x2, out=self.value)[0].add_(self.bias3)
        value.addcmul_(self.linear, z, value=0.5)
        torch.addcmul(h[0], self.scale, value, out=z)
