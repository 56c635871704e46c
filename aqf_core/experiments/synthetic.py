"""Generated problems whose truth is known: one target with three kinds of noise, and chains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..datasets import NOISES, Chain, NoiseProblem
from ..datasets.noise import HIGH, LOW
from .methods import Method, own
from .records import Record
from .runner import Job
from .scoring import DENSE_LEVELS, energy, score_quantiles

__all__ = ["CURVE", "chain_jobs", "chain_methods", "noise_jobs", "noise_methods"]

Array = NDArray[np.float64]

# Where the 80 % intervals are stored for the figure.
CURVE: Array = np.linspace(LOW, HIGH, 101)
TEST_SEED = 10_000


def noise_methods(problem: str, preset: str) -> list[Method]:
    """What is compared on one target: the same network with different heads, and the truth.

    Example:
        >>> [m.name for m in noise_methods("beta", "fast")]
        ['aqf', 'gaussian', 'mdn', 'qro', 'truth']
    """
    methods = [
        own("aqf", "AQF", "QuantileFlowRegressor", preset=preset),
        own("gaussian", "Gaussian", "GaussianRegressor", preset=preset),
        own("mdn", "MDN", "MixtureDensityRegressor", preset=preset),
        own("qro", "QRO", "QuantileGridRegressor", preset=preset),
    ]
    if problem == "poisson":
        methods.append(own("poisson", "Poisson", "PoissonRegressor", preset=preset))

    def truth(X: Any, y: Array, seed: int) -> NoiseProblem:
        return NOISES[problem]

    return [*methods, Method("truth", "truth", "truth", truth)]


def chain_methods(chain: Chain, preset: str) -> list[Method]:
    """What is compared on a chain.

    Example:
        >>> [m.name for m in chain_methods(Chain(2), "fast")]
        ['aqf', 'gaussian-mrf', 'mv-quantile', 'truth']
    """

    def truth(X: Any, y: Array, seed: int) -> Chain:
        return chain

    return [
        own("aqf", "AQF", "QuantileFlowRegressor", preset=preset),
        own("gaussian-mrf", "Gaussian MRF", "GaussianMRFRegressor", preset=preset),
        own("mv-quantile", "Quantile", "MultivariateQuantileRegressor", preset=preset),
        Method("truth", "truth", "truth", truth),
    ]


def noise_jobs(
    problems: Sequence[str], seeds: Sequence[int], preset: str, train: int, test: int
) -> list[Job]:
    """A job per problem, seed and method; truth and methods see the same rows.

    Args:
        problems: names in `NOISES`.
        seeds: of the data and the methods.
        preset: of the estimators.
        train, test: number of rows.
    """
    sizes = {"train": train, "test": test}
    return [
        Job(_key(name, method, seed, sizes), _noise_work(NOISES[name], method, seed, sizes))
        for name in problems
        for seed in seeds
        for method in noise_methods(name, preset)
    ]


def chain_jobs(
    targets: Sequence[int], seeds: Sequence[int], preset: str, train: int, test: int, samples: int
) -> list[Job]:
    """A job per chain, seed and method.

    Args:
        targets: lengths of the chains.
        seeds: of the data and the methods.
        preset: of the estimators.
        train, test: number of rows.
        samples: joint draws per test row.
    """
    sizes = {"train": train, "test": test, "samples": samples}
    return [
        Job(
            _key(chain.name, method, seed, sizes), _chain_work(chain, method, seed, sizes), "energy"
        )
        for chain in map(Chain, targets)
        for seed in seeds
        for method in chain_methods(chain, preset)
    ]


def _key(dataset: str, method: Method, seed: int, sizes: Record) -> Record:
    key: Record = {"dataset": dataset, "method": method.name, "seed": seed}
    return key | sizes | {"settings": method.settings}


def _timed(method: Method, X: Array, y: Array, seed: int) -> tuple[Any, Record]:
    start = time.process_time()
    fit = method.fit(X, y, seed)
    return fit, {"fit_seconds": round(time.process_time() - start, 3)}


def _noise_work(
    problem: NoiseProblem, method: Method, seed: int, sizes: Record
) -> Callable[[], Record]:
    def work() -> Record:
        fit, entries = _timed(method, *problem.draw(sizes["train"], seed), seed)
        X, y = problem.draw(sizes["test"], TEST_SEED + seed)
        scores = score_quantiles(fit.quantiles(X, DENSE_LEVELS), y)
        interval = fit.quantiles(CURVE[:, None], np.array([0.1, 0.9]))
        return entries | scores | {"interval": np.round(interval, 4).tolist()}

    return work


def _chain_work(chain: Chain, method: Method, seed: int, sizes: Record) -> Callable[[], Record]:
    def work() -> Record:
        fit, entries = _timed(method, *chain.draw(sizes["train"], seed), seed)
        X, y = chain.draw(sizes["test"], TEST_SEED + seed)
        draws = fit.sample(X, sizes["samples"], seed)
        marginal = float(metrics.crps_from_samples(draws.swapaxes(0, 1), y))
        return entries | {"crps": marginal, "energy": energy(draws, y)}

    return work
