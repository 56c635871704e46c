r"""One-dimensional problems with known noise around \(f(x') = \sin(x'/2) + x'/10\)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOISES", "NoiseProblem", "base_function"]

Array = NDArray[np.float64]

# The paper does not say where x' lies, nor the constant C of the Poisson rate. With this range f
# falls to -1.33, so that a constant is needed, and this one gives the truth the published CRPS.
LOW, HIGH = -10.0, 10.0
POISSON_SHIFT = 2.75


def base_function(x: Array) -> Array:
    r"""\(\sin(x/2) + x/10\).

    Example:
        >>> base_function(np.array([0.0]))
        array([0.])
    """
    return np.sin(x / 2) + x / 10


@dataclass(frozen=True)
class NoiseProblem:
    """y given x', uniform on [-10, 10], with a known distribution.

    Attributes:
        name: what reports call it.
        distribution: x' (n,) -> frozen distribution of SciPy with batch shape (n,).
        formula: for reports.

    Example:
        >>> X, y = NOISES["beta"].draw(5, seed=0)
        >>> X.shape, y.shape, NOISES["beta"].quantiles(X, [0.1, 0.9]).shape
        ((5, 1), (5,), (5, 2))
    """

    name: str
    distribution: Callable[[Array], Any]
    formula: str

    def draw(self, n: int, seed: int) -> tuple[Array, Array]:
        """Inputs (n, 1) and targets (n,)."""
        rng = np.random.default_rng(seed)
        x = rng.uniform(LOW, HIGH, n)
        y = np.asarray(self.distribution(x).rvs(random_state=rng), dtype=np.float64)
        return x[:, None], y

    def quantiles(self, X: Array, levels: Any) -> Array:
        """True quantiles (n, K) at levels (K,)."""
        dist = self.distribution(X[:, 0])
        levels = np.asarray(levels, dtype=np.float64)
        return np.stack([np.asarray(dist.ppf(u), dtype=np.float64) for u in levels], 1)


def _gaussian(x: Array) -> Any:
    from scipy import stats

    return stats.norm(base_function(x), 1.0)


def _beta(scale: float) -> Callable[[Array], Any]:
    def distribution(x: Array) -> Any:
        from scipy import stats

        return stats.beta(2, 5, loc=base_function(x), scale=scale)

    return distribution


def _poisson(x: Array) -> Any:
    from scipy import stats

    return stats.poisson(base_function(x) + POISSON_SHIFT)


NOISES: dict[str, NoiseProblem] = {
    p.name: p
    for p in (
        NoiseProblem("gaussian", _gaussian, "f(x') + N(0, 1)"),
        NoiseProblem("beta", _beta(5.0), "f(x') + 5 Beta(2, 5)"),
        NoiseProblem("beta-unit", _beta(1.0), "f(x') + Beta(2, 5)"),
        NoiseProblem("poisson", _poisson, f"Poisson(f(x') + {POISSON_SHIFT:g})"),
    )
}
