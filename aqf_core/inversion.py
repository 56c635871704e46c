"""The one root finder: solve f(x) = target for a strictly increasing f, elementwise and batched."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .errors import DomainError
from .validation import has_values

__all__ = ["invert_monotone"]

ValueAndSlope = Callable[[Tensor], tuple[Tensor, Tensor]]

MAX_EXPANSIONS = 60
MAX_ITERATIONS = 200
TRACED_ITERATIONS = {torch.float32: 32, torch.float64: 60}


def invert_monotone(
    f_and_slope: ValueAndSlope,
    target: Tensor,
    low: Tensor | float = -8.0,
    high: Tensor | float = 8.0,
    tolerance: float | None = None,
) -> Tensor:
    """Solve f(x) = target by Newton's method safeguarded by bisection.

    Each step takes the Newton step if it stays inside the bracket and shrinks fast enough, and
    bisects otherwise, so convergence is certain for every increasing f and fast for smooth ones.
    Iterates until every element has converged; when traced (compile, export, vmap) a fixed number
    of iterations runs instead and the bracket is taken as it is.

    The result carries the gradient of the implicit function theorem,
    dx = (dtarget - df) / f'(x), with respect to `target` and everything `f_and_slope` closes over,
    and so do its derivatives up to the third.

    Args:
        f_and_slope: x -> (f(x), f'(x)), elementwise, f increasing, f' > 0.
        target: right-hand sides, any shape; x has the broadcast shape of f(target) and target.
        low: lower end of the bracket, broadcastable; widened while f(low) > target.
        high: upper end of the bracket, broadcastable; widened while f(high) < target.
        tolerance: relative size of the last step; default 4 eps of the dtype.

    Returns:
        x with f(x) = target.

    Raises:
        DomainError: `target` is outside the range of f (only checked when not traced).

    Example:
        >>> f = lambda x: (x**3 + x, 3 * x**2 + 1)
        >>> target = torch.tensor([2.0, 1010.0], requires_grad=True)
        >>> x = invert_monotone(f, target)
        >>> x
        tensor([ 1., 10.], grad_fn=...)
        >>> torch.autograd.grad(x.sum(), target)[0]
        tensor([0.2500, 0.0033])
    """
    with torch.no_grad():
        x = _search(f_and_slope, target, low, high, tolerance)
    if not torch.is_grad_enabled():
        return x
    # Newton steps at the solution change nothing but its derivatives: the first step makes the
    # first derivative right, the second those up to the third.
    for _ in range(2):
        value, slope = f_and_slope(x)
        residual = target - value
        x = x + (residual - residual.detach()) / slope
    return x


def _search(
    f_and_slope: ValueAndSlope,
    target: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    tolerance: float | None,
) -> Tensor:
    # One evaluation fixes the broadcast shape, so that the loop never reallocates.
    target = target + torch.zeros_like(f_and_slope(torch.zeros_like(target))[0])
    low = torch.zeros_like(target) + low
    high = torch.zeros_like(target) + high
    eager = has_values(target)
    if eager:
        low, high = _expand(f_and_slope, target, low, high)
    tolerance = 4.0 * torch.finfo(target.dtype).eps if tolerance is None else tolerance
    x = 0.5 * (low + high)
    last_step = high - low
    converged = torch.zeros_like(x, dtype=torch.bool)
    iterations = MAX_ITERATIONS if eager else TRACED_ITERATIONS.get(target.dtype, 60)
    for _ in range(iterations):
        value, slope = f_and_slope(x)
        residual = value - target
        below = residual < 0
        low, high = torch.where(below, x, low), torch.where(below, high, x)
        newton = x - residual / slope
        step = (newton - x).abs()
        small = step <= tolerance * (1.0 + x.abs())
        # NaN and infinity fail these comparisons: a flat or overflowing f falls back to bisection.
        good = (newton >= low) & (newton <= high) & (2.0 * step <= last_step)
        new = torch.where(small | good, newton, 0.5 * (low + high))
        # A converged element stays: rounding could otherwise send it back to bisection.
        new = torch.where(converged, x, new)
        last_step = (new - x).abs()
        converged = last_step <= tolerance * (1.0 + x.abs())
        x = new
        if eager and bool(converged.all()):
            break
    return x


def _expand(
    f_and_slope: ValueAndSlope, target: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Move the ends of the bracket outwards, ever further, until it holds the root."""
    for _ in range(MAX_EXPANSIONS):
        too_high = f_and_slope(low)[0] > target
        too_low = f_and_slope(high)[0] < target
        if not bool((too_high | too_low).any()):
            return low, high
        reach = 4.0 * (high - low) + 1e-3 * (1.0 + high.abs())
        low = torch.where(too_high, low - reach, low)
        high = torch.where(too_low, high + reach, high)
    raise DomainError(
        "cannot invert the map: a target lies outside its range "
        f"(searched {low.min().item():.3g} to {high.max().item():.3g})."
    )
