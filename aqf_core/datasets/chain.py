r"""A chain of d targets, \(x_j = 5\sin(x_{j-1}/3) + x_{j-1} + N(0, 1)\) from an input \(x'\)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Chain"]

Array = NDArray[np.float64]

# The paper does not say where x' lies.
LOW, HIGH = -10.0, 10.0


@dataclass(frozen=True)
class Chain:
    """The chain of d targets; x' is uniform on [-10, 10].

    Near 0 the map is unstable, so that chains part to either side: joint distributions have two
    modes for some inputs.

    Example:
        >>> X, y = Chain(3).draw(5, seed=0)
        >>> X.shape, y.shape, Chain(3).sample(X, 7, seed=1).shape
        ((5, 1), (5, 3), (5, 7, 3))
    """

    targets: int

    @property
    def name(self) -> str:
        return f"{self.targets}-D"

    def draw(self, n: int, seed: int) -> tuple[Array, Array]:
        """Inputs (n, 1) and targets (n, d)."""
        rng = np.random.default_rng(seed)
        X = rng.uniform(LOW, HIGH, (n, 1))
        return X, self._follow(X, rng)[:, 0]

    def sample(self, X: Array, n: int, seed: int) -> Array:
        """Samples (rows, n, d) of the true distribution given X (rows, 1)."""
        return self._follow(np.repeat(X, n, axis=1), np.random.default_rng(seed))

    def _follow(self, start: Array, rng: np.random.Generator) -> Array:
        x, steps = start, []
        for _ in range(self.targets):
            x = 5 * np.sin(x / 3) + x + rng.normal(size=x.shape)
            steps.append(x)
        return np.stack(steps, -1)
