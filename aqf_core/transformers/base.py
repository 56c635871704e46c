"""What every transformer shares: location, scale, the two directions and what follows from them.

A transformer is a family of strictly increasing maps between a standard normal variable z and an
outcome y, one map per parameter vector h = [location, raw scale, shape parameters]:

    direction "quantile":   y = location + scale * m(z; shape)
    direction "cdf":        z = m((y - location) / scale; shape)

A family implements the core map m and, if it has one in closed form, its inverse. Everything else
is derived here: quantiles Q(u) = y(Phi^-1(u)), the CDF F(y) = Phi(z(y)), densities.

Families on a fixed grid are `sliding`: two more parameters move and stretch z, so that the grid can
follow a feature of the distribution such as the gap between two modes. For direction "quantile",

    y = location + scale * (shift + m(zoom * (z - shift)) / zoom).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import ShapeError, UnknownNameError
from ..inversion import invert_monotone
from ..normal import base_to_level, level_to_base, log_density
from ..validation import at_least_float32

__all__ = ["Direction", "Transformer", "bounded", "unbounded"]

Direction = Literal["quantile", "cdf"]

# log(scale) stays within +-LOG_SCALE_LIMIT, so that no finite parameter overflows float32.
LOG_SCALE_LIMIT = 14.0
SHIFT_LIMIT = 3.0
LOG_ZOOM_LIMIT = 1.5


def bounded(raw: Tensor, limit: float) -> Tensor:
    """Squash to (-limit, limit) by raw / (1 + |raw| / limit): cheap, slope 1 at 0, never flat.

    Used for every logarithm of a positive quantity: exp(bounded(raw, 8)) cannot overflow or vanish.

    Example:
        >>> bounded(torch.tensor([0.0, 8.0, -1e30]), 8.0)
        tensor([ 0.,  4., -8.])
    """
    return raw / (1.0 + raw.abs() / limit)


def unbounded(value: Tensor, limit: float) -> Tensor:
    """Inverse of `bounded`; values beyond +-limit are first moved just inside.

    Example:
        >>> unbounded(bounded(torch.tensor([-3.0, 5.0]), 8.0), 8.0)
        tensor([-3.0000,  5.0000])
    """
    value = value.clamp(min=-0.999 * limit, max=0.999 * limit)
    return value / (1.0 - value.abs() / limit)


def _full_precision(x: Tensor) -> AbstractContextManager[Any]:
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


class _Parts(NamedTuple):
    """The parameters of y = loc + exp(log_scale) * m(offset + zoom * z); no zoom: m(z)."""

    loc: Tensor
    log_scale: Tensor
    offset: Tensor
    zoom: Tensor | None
    shape: Any


class Transformer(nn.Module):
    """A family of increasing maps between z ~ N(0, 1) and an outcome y, see the module docstring.

    Attributes:
        n_params: how many numbers per scalar variable the conditioner must emit.
        direction: which of Q ("quantile") and F ("cdf") the core map parametrises.
        closed_form: which of "quantile" and "cdf" need no root finding.

    Shapes everywhere: z, y, u are (...) and h is (..., n_params) whose leading shape broadcasts
    with them; A levels per parameter vector are evaluated with `h.unsqueeze(-2)` against (..., A).
    Zero parameters give the identity y = z, or a map near it.

    Example:
        >>> class Cubic(Transformer):  # a family of one's own: m(a) = a + c a^3
        ...     def __init__(self, direction="quantile"):
        ...         super().__init__((1,), direction)
        ...
        ...     def prepare(self, raw):
        ...         return raw.squeeze(-1).exp()
        ...
        ...     def core(self, a, c, slope):
        ...         return a + c * a**3, (1 + 3 * c * a**2).log() if slope else None
        >>> cubic, u = Cubic(), torch.tensor([0.1, 0.5, 0.9])
        >>> h = torch.zeros(1, cubic.n_params)
        >>> torch.allclose(cubic.cdf(cubic.quantile(u, h), h), u, atol=1e-5)
        True
    """

    closed_inverse: ClassVar[bool] = False
    closed_crps: ClassVar[bool] = False
    sliding: ClassVar[bool] = False

    def __init__(self, shape_sizes: Sequence[int], direction: Direction = "quantile") -> None:
        super().__init__()
        if direction not in ("quantile", "cdf"):
            raise UnknownNameError(f"unknown direction {direction!r}; choose from quantile, cdf.")
        self.direction: Direction = direction
        self.sizes = [1, 1, *((1, 1) if self.sliding else ()), *shape_sizes]
        self.n_params = sum(self.sizes)

    @property
    def closed_form(self) -> frozenset[str]:
        """The directions that are evaluated in closed form."""
        return (
            frozenset(("quantile", "cdf")) if self.closed_inverse else frozenset((self.direction,))
        )

    @property
    def core_is_quantile(self) -> bool:
        """Whether the core map goes from z to y (or from y to z)."""
        return self.direction == "quantile"

    # What a family implements. `shape` is whatever its `prepare` returns, computed once per h.

    def prepare(self, *raw: Tensor) -> Any:
        """Turn the shape parameters, one (..., size) per shape size, into what `core` needs."""
        return None

    def core(self, a: Tensor, shape: Any, slope: bool) -> tuple[Tensor, Tensor | None]:
        """The increasing map m(a) and, if `slope`, log m'(a)."""
        raise NotImplementedError

    def core_inverse(self, b: Tensor, shape: Any, slope: bool) -> tuple[Tensor, Tensor | None]:
        """a with m(a) = b and, if `slope`, log da/db; by root finding unless overridden."""
        low, high = self.bracket(b.detach(), shape)
        a = invert_monotone(lambda t: self._core_and_slope(t, shape), b, low, high)
        return a, -cast(Tensor, self.core(a, shape, True)[1]) if slope else None

    def core_crps(self, b: Tensor, shape: Any) -> Tensor:
        """CRPS at b = (y - location) / scale in units of the scale, if `closed_crps`."""
        raise NotImplementedError

    def bracket(self, b: Tensor, shape: Any) -> tuple[Tensor | float, Tensor | float]:
        """Two numbers between which a with m(a) = b lies; only for maps without closed inverse."""
        return -8.0, 8.0

    def _core_and_slope(self, a: Tensor, shape: Any) -> tuple[Tensor, Tensor]:
        value, log_slope = self.core(a, shape, True)
        return value, cast(Tensor, log_slope).exp()

    # The two directions.

    def from_base(self, z: Tensor, h: Tensor) -> Tensor:
        """y of shape broadcast(z, h[..., 0])."""
        return self._from_base(z, h, False)[0]

    def from_base_and_slope(self, z: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """(y, log dy/dz)."""
        return cast(tuple[Tensor, Tensor], self._from_base(z, h, True))

    def sampler(self, z: Tensor) -> Callable[[int, Tensor], None]:
        """A function of (j, h) that replaces z_j by y_j = `from_base(z_j, h)`, without gradients.

        Families override it where many calls with the same shapes can be made faster.

        Args:
            z: base variables (d, *B), contiguous, in the precision of the parameters; h is then
                (*B, n_params) up to broadcasting.
        """

        def sample(j: int, h: Tensor) -> None:
            z[j] = self.from_base(z[j], h)

        return sample

    def to_base(self, y: Tensor, h: Tensor) -> Tensor:
        """z of shape broadcast(y, h[..., 0])."""
        return self._to_base(y, h, False)[0]

    def to_base_and_slope(self, y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """(z, log dz/dy)."""
        return cast(tuple[Tensor, Tensor], self._to_base(y, h, True))

    def _from_base(self, z: Tensor, h: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
        value, log_slope, loc, log_scale = self.standard_from_base(z, h, slope)
        y = loc + log_scale.exp() * value
        return y, None if log_slope is None else log_slope + log_scale

    def standard_from_base(
        self, z: Tensor, h: Tensor, slope: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """The parts of y = loc + exp(log_scale) * value: (value, log dvalue/dz, loc, log_scale)."""
        with _full_precision(h):
            z, parts = self._split(z, h)
            if parts.zoom is not None:
                z = torch.addcmul(parts.offset, z, parts.zoom)
            run = self.core if self.core_is_quantile else self.core_inverse
            value, log_slope = run(z, parts.shape, slope)
            if log_slope is not None and parts.zoom is not None:
                log_slope = log_slope + parts.zoom.log()
            return value, log_slope, parts.loc, parts.log_scale

    def _to_base(self, y: Tensor, h: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
        with _full_precision(h):
            y, parts = self._split(y, h)
            run = self.core_inverse if self.core_is_quantile else self.core
            value = (y - parts.loc) * (-parts.log_scale).exp()
            z, log_slope = run(value, parts.shape, slope)
            log_scale = parts.log_scale
            if parts.zoom is not None:
                z = (z - parts.offset) / parts.zoom
                log_scale = log_scale + parts.zoom.log()
            return z, None if log_slope is None else log_slope - log_scale

    def _split(self, x: Tensor, h: Tensor) -> tuple[Tensor, _Parts]:
        if h.dim() == 0 or h.shape[-1] != self.n_params:
            raise ShapeError(
                f"h must have shape (..., {self.n_params}) for {type(self).__name__}, "
                f"got {tuple(h.shape)}."
            )
        # Half precision is only for the network that computes h.
        x, h = at_least_float32(x), at_least_float32(h)
        # One split, no slices: its gradient is one concatenation.
        loc, raw_scale, *raw = (part for part in torch.split(h, self.sizes, -1))
        loc, log_scale = loc.squeeze(-1), bounded(raw_scale.squeeze(-1), LOG_SCALE_LIMIT)
        if not self.sliding:
            return x, _Parts(loc, log_scale, loc, None, self.prepare(*raw))
        shift, raw_zoom, *raw = raw
        shift = bounded(shift.squeeze(-1), SHIFT_LIMIT)
        log_zoom = bounded(raw_zoom.squeeze(-1), LOG_ZOOM_LIMIT)
        zoom = log_zoom.exp()
        # shift + m(zoom (z - shift)) / zoom, the outer part of it put into location and scale.
        loc, log_scale = loc + log_scale.exp() * shift, log_scale - log_zoom
        return x, _Parts(loc, log_scale, -shift * zoom, zoom, self.prepare(*raw))

    # Derived quantities.

    def quantile(self, u: Tensor, h: Tensor) -> Tensor:
        """Q(u), finite for every u in [0, 1]."""
        return self.from_base(level_to_base(u), h)

    def cdf(self, y: Tensor, h: Tensor) -> Tensor:
        """F(y) in [0, 1]."""
        return base_to_level(self.to_base(y, h))

    def log_prob(self, y: Tensor, h: Tensor) -> Tensor:
        """log F'(y) = log N(z) + log dz/dy."""
        z, log_slope = self.to_base_and_slope(y, h)
        return log_density(z) + log_slope

    def crps(self, y: Tensor, h: Tensor) -> Tensor | None:
        """The CRPS of the map's distribution at y in closed form, or None if there is none."""
        if not self.closed_crps:
            return None
        with _full_precision(h):
            y, parts = self._split(y, h)
            scale = parts.log_scale.exp()
            return scale * self.core_crps((y - parts.loc) / scale, parts.shape)

    def pinball(self, y: Tensor, z: Tensor, u: Tensor, h: Tensor) -> Tensor:
        """Mean over levels u = Phi(z) of the pinball loss rho_u(y - Q(u)).

        Args:
            y: outcomes (...).
            z, u: base variables and their levels, (..., A).
            h: parameters (..., n_params).

        Returns:
            Shape (...).
        """
        value, _, loc, log_scale = self.standard_from_base(z, h.unsqueeze(-2))
        # The loss is homogeneous: on standardised values location and scale cost nothing.
        scale = log_scale.exp()
        error = (y.unsqueeze(-1) - loc) / scale - value
        # u e + max(-e, 0) needs no comparison, which is slow in both passes.
        return (u * error + torch.relu(-error)).mean(-1) * scale.squeeze(-1)

    def location_scale(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale (...) of parameters h (..., n_params)."""
        h = at_least_float32(h)
        return h[..., 0], bounded(h[..., 1], LOG_SCALE_LIMIT).exp()

    def gaussian_params(self, loc: Tensor, scale: Tensor) -> Tensor:
        """Parameters h (..., n_params) with zero shape: N(loc, scale^2) where zero is the identity.

        Args:
            loc: (...).
            scale: positive, broadcasts with loc.
        """
        raw = unbounded(scale.log(), LOG_SCALE_LIMIT) + torch.zeros_like(loc)
        loc = loc + torch.zeros_like(raw)
        shape = loc.new_zeros(*loc.shape, self.n_params - 2)
        return torch.cat([torch.stack([loc, raw], -1), shape], -1)

    def extra_repr(self) -> str:
        return f"direction={self.direction!r}, n_params={self.n_params}"
