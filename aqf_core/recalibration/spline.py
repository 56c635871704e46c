"""Recalibration by a smooth map."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import DomainError
from ..transformers import make_transformer
from ..validation import check_finite
from .base import Recalibration

__all__ = ["SplineRecalibration"]

# Observations farther out than this many spreads say "far away" and nothing more.
FARTHEST = 8.0


class SplineRecalibration(Recalibration):
    r"""Smooth monotone map: a rational-quadratic spline in z, fitted by penalised likelihood.

    Maximises \(\sum_i \log p(z_i) - \|h\|^2 / (2\,\mathrm{prior}^2)\), where p is the density of a
    spline transformer with parameters h, and h = 0 is the identity. With few observations the map
    therefore stays close to no change; it has a smooth density and linear tails.

    Args:
        bins: number of bins of the spline, even.
        prior: standard deviation of the parameters around the identity.
        per_column: see `Recalibration`.

    Example:
        >>> u = (torch.arange(500) + 0.5) / 500
        >>> overconfident = torch.special.ndtr(2 * torch.special.ndtri(u))
        >>> recalibrate = SplineRecalibration().fit(overconfident)
        >>> bool((recalibrate.levels(overconfident) - u).abs().max() < 0.01)
        True
    """

    def __init__(self, bins: int = 8, prior: float = 0.3, per_column: bool = False) -> None:
        super().__init__(per_column)
        if not prior > 0:
            raise DomainError(f"prior is a standard deviation and must be positive, got {prior}.")
        self.prior = prior
        self.transformer = make_transformer("spline", bins=bins).double()

    def _fit(self, z: Tensor) -> None:
        h = torch.zeros(len(z), 1, self.transformer.n_params, dtype=z.dtype)
        # The location and scale are not shrunk: they start at the robust estimate.
        centre = z.median(-1, keepdim=True).values
        spread = (z - centre).abs().median(-1, keepdim=True).values.clamp_min(0.05) * 1.4826
        z = torch.minimum(torch.maximum(z, centre - FARTHEST * spread), centre + FARTHEST * spread)
        start = self.transformer.gaussian_params(centre, spread)
        h[..., :2] = start[..., :2]
        h.requires_grad_()
        optimiser = torch.optim.LBFGS([h], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimiser.zero_grad()
            likelihood = self.transformer.log_prob(z, h).mean(-1).sum()
            penalty = h[..., 2:].square().sum() / (2 * self.prior**2 * z.shape[-1])
            value: Tensor = penalty - likelihood
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            optimiser.step(loss)  # type: ignore[no-untyped-call]
        self._h = check_finite(h.detach(), "the fitted recalibration")

    def _columns(self) -> int:
        return len(self._h)

    def _to_base(self, z: Tensor) -> tuple[Tensor, Tensor]:
        w, log_slope = self.transformer.to_base_and_slope(z.double(), self._h.to(z.device))
        return w.to(z.dtype), log_slope.to(z.dtype)

    def _from_base(self, w: Tensor) -> Tensor:
        return self.transformer.from_base(w.double(), self._h.to(w.device)).to(w.dtype)
