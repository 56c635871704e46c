"""What every regressor promises, whatever its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from aqf_core import estimators as est

REGRESSORS = [
    est.QuantileFlowRegressor,
    est.CDFFlowRegressor,
    est.GaussianRegressor,
    est.MixtureDensityRegressor,
    est.QuantileGridRegressor,
    est.PoissonRegressor,
    est.GaussianMRFRegressor,
    est.MultivariateQuantileRegressor,
]
LEVELS = np.arange(1, 100) / 100


def counts(rows: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Counts, so that every head may learn from them."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, (rows, 2))
    return X, rng.poisson(1 + 4 * X[:, 0]).astype(float)


def quick(kind: Any, **options: Any) -> Any:
    return kind(**{"members": 2, "steps": 40, "random_state": 0} | options)


@pytest.fixture(scope="module")
def fitted() -> dict[Any, Any]:
    X, y = counts()
    return {kind: quick(kind).fit(X, y) for kind in REGRESSORS}


# One bag; the others differ by their head, which one network shows as well.
TINY: list[Any] = [quick(est.QuantileFlowRegressor, steps=3, hidden=(4,))] + [
    quick(kind, members=1, steps=3, hidden=(4,))
    for kind in (*REGRESSORS[1:], est.CDFFlowClassifier)
]


@pytest.mark.filterwarnings("ignore")  # some checks provoke them on purpose
@parametrize_with_checks(TINY)
def test_scikit_learn_agrees(estimator: Any, check: Callable[[Any], None]) -> None:
    try:
        check(estimator)
    except SkipTest as reason:  # for arrays of other libraries, which no estimator promises
        assert "ARRAY_API" in str(reason)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_shapes_and_laws_of_probability(kind: Any, fitted: dict[Any, Any]) -> None:
    X, y = counts()
    model = fitted[kind]
    n = len(y)
    quantiles = model.predict_quantiles(X, LEVELS)
    assert quantiles.shape == (n, 99)
    assert (np.diff(quantiles, axis=1) >= 0).all()
    assert np.allclose(model.predict(X), quantiles[:, 49])
    low, high = model.predict_interval(X, 0.9).T
    assert np.allclose(low, quantiles[:, 4]) and np.allclose(high, quantiles[:, 94])
    cdf = model.predict_cdf(X, y)
    assert cdf.shape == (n,) and (cdf >= 0).all() and (cdf <= 1).all()
    below, above = model.predict_event(X, below=4.0), model.predict_event(X, above=6.0)
    between = model.predict_event(X, between=(4.0, 6.0))
    assert np.allclose(below + between + above, 1.0)
    assert model.predict_cdf(X, np.tile([4.0, 6.0], (n, 1))).shape == (n, 2)
    assert (model.predict_pdf(X, y) >= 0).all()
    assert model.score(X, y) == pytest.approx(-model.predict_dist(X).crps(y).mean())


@pytest.mark.parametrize("kind", REGRESSORS)
def test_samples_follow_the_quantiles(kind: Any, fitted: dict[Any, Any]) -> None:
    X, _ = counts()
    model, X = fitted[kind], X[:3]
    draws = model.sample(X, 4000, random_state=1)
    assert draws.shape == (3, 4000)
    assert np.array_equal(draws, model.sample(X, 4000, random_state=1))
    quantiles = model.predict_quantiles(X, [0.2, 0.5, 0.8])
    share = (draws[:, :, None] <= quantiles[:, None, :]).mean(1)
    assert np.abs(share - model.predict_cdf(X, quantiles)).max() < 0.03
    assert np.allclose(draws.mean(1), model.predict(X, "mean"), rtol=0.1)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_learns_something(kind: Any) -> None:
    X, y = counts(300)
    model = quick(kind, steps=150).fit(X[:200], y[:200])
    error = np.abs(y[200:] - model.predict(X[200:])).mean()
    assert error < 0.75 * np.abs(y[200:] - np.median(y[:200])).mean()


@pytest.mark.parametrize("kind", REGRESSORS)
def test_same_seed_same_bits(kind: Any, fitted: dict[Any, Any]) -> None:
    X, y = counts()
    again = clone(fitted[kind]).fit(X, y)
    assert np.array_equal(
        again.predict_quantiles(X, LEVELS), fitted[kind].predict_quantiles(X, LEVELS)
    )
    other = quick(kind, random_state=1).fit(X, y)
    assert not np.array_equal(other.predict(X, "mean"), again.predict(X, "mean"))


@pytest.mark.parametrize("kind", REGRESSORS)
def test_pandas_in_pandas_out(kind: Any, fitted: dict[Any, Any]) -> None:
    X, y = counts()
    index = [f"row {i}" for i in range(len(y))]
    frame = pd.DataFrame(X, columns=["a", "b"], index=index)
    model = quick(kind).fit(frame, pd.Series(y, index=index, name="count"))
    quantiles = model.predict_quantiles(frame, [0.1, 0.9])
    assert list(quantiles.columns) == [0.1, 0.9] and list(quantiles.index) == index
    assert np.array_equal(quantiles.to_numpy(), fitted[kind].predict_quantiles(X, [0.1, 0.9]))
    assert list(model.predict_interval(frame).columns) == ["low", "high"]
    assert model.predict_cdf(frame, y).name == "count"
    assert isinstance(model.predict(frame), np.ndarray)
