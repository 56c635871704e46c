"""Other libraries in the same run: imported when they are used, left out when they are absent.

Their settings are fixed and the same for all data sets. A few were tried on splits 0-2 of yacht, by
test scores, so in favour of the peer: a default that was clearly worse is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .methods import Method, numeric_features
from .scoring import interpolate_levels

__all__ = ["installed", "joint_peers", "peers"]

Array = NDArray[np.float64]

GRID: Array = np.arange(1, 100) / 100


def installed(method: Method) -> bool:
    """Whether the package of a method can be imported.

    Example:
        >>> installed(Method("x", "X", "", lambda X, y, seed: None, package="no_such_package"))
        False
    """
    return method.package is None or util.find_spec(method.package) is not None


class PeerFit:
    """A peer behind the preparation of its features.

    Args:
        prepare: fitted transformer of features.
        predict: (features, levels) -> quantiles.
        draw: (features, n, generator) -> joint draws, for several targets.
    """

    def __init__(
        self,
        prepare: Any,
        predict: Callable[[Array, Array], Array],
        draw: Callable[[Array, int, np.random.Generator], Array] | None = None,
    ) -> None:
        self._prepare, self._predict, self._draw = prepare, predict, draw

    def quantiles(self, X: Any, levels: Array) -> Array:
        return self._predict(self._prepare.transform(X), levels)

    def sample(self, X: Any, n: int, seed: int) -> Array:
        assert self._draw is not None
        return self._draw(self._prepare.transform(X), n, np.random.default_rng(seed))


Predict = Callable[[Array, Array], Array]


def _peer(
    name: str,
    label: str,
    package: str,
    settings: str,
    train: Callable[[Array, Array, int], Predict],
    scale: bool = False,
) -> Method:
    def fit(X: Any, y: Array, seed: int) -> PeerFit:
        prepare = numeric_features(X, scale).fit(X)
        return PeerFit(prepare, train(prepare.transform(X), y, seed))

    return Method(name, label, settings, fit, package)


def _normal_quantiles(mean: Array, deviation: Array, levels: Array) -> Array:
    from scipy.stats import norm

    table: Array = mean[..., None] + deviation[..., None] * norm.ppf(levels)
    return table


def _on_grid(predict: Callable[[Array], Array]) -> Predict:
    """Levels of a method that knows the percent levels only; crossing quantiles are sorted."""
    return lambda X, levels: interpolate_levels(GRID, np.asarray(predict(X), float), levels)


def _tree(seed: int) -> Any:
    """NGBoost's own base learner; it does not pass its seed on, so that ties fall by chance."""
    from ngboost.learners import default_tree_learner
    from sklearn.base import clone

    return clone(default_tree_learner).set_params(random_state=seed)


def _ngboost(X: Array, y: Array, seed: int) -> Predict:
    from ngboost import NGBRegressor

    model = NGBRegressor(Base=_tree(seed), verbose=False, random_state=seed).fit(X, y)

    def predict(X: Array, levels: Array) -> Array:
        normal = model.pred_dist(X).params
        return _normal_quantiles(normal["loc"], normal["scale"], levels)

    return predict


def _catboost(X: Array, y: Array, seed: int) -> Predict:
    from catboost import CatBoostRegressor

    alphas = ",".join(f"{u:.2f}" for u in GRID)
    model = CatBoostRegressor(
        loss_function=f"MultiQuantile:alpha={alphas}",
        random_seed=seed,
        thread_count=1,
        verbose=0,
        allow_writing_files=False,
    )
    return _on_grid(model.fit(X, y).predict)


def _lightgbm(X: Array, y: Array, seed: int) -> Predict:
    from lightgbm import LGBMRegressor

    models = [
        LGBMRegressor(
            objective="quantile",
            alpha=u,
            n_estimators=200,
            min_child_samples=5,
            random_state=seed,
            n_jobs=1,
            verbose=-1,
        ).fit(X, y)
        for u in GRID
    ]
    # The booster itself does not ask for the names of columns.
    return _on_grid(lambda X: np.stack([m.booster_.predict(X) for m in models], 1))


def _xgboost(X: Array, y: Array, seed: int) -> Predict:
    from xgboost import XGBRegressor

    model = XGBRegressor(
        objective="reg:quantileerror",
        quantile_alpha=GRID,
        n_estimators=200,
        learning_rate=0.1,
        max_depth=4,
        random_state=seed,
        n_jobs=1,
    )
    return _on_grid(model.fit(X, y).predict)


def _quantile_forest(X: Array, y: Array, seed: int) -> Predict:
    from quantile_forest import ExtraTreesQuantileRegressor

    model = ExtraTreesQuantileRegressor(500, random_state=seed, n_jobs=1).fit(X, y)
    return lambda X, levels: np.asarray(model.predict(X, quantiles=levels.tolist()), float)


def _gaussian_process(X: Array, y: Array, seed: int) -> Predict:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    # Lengths grow for features that do not matter: the default bounds stop them too early.
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(np.ones(X.shape[1]), (1e-2, 1e4))
    kernel = kernel + WhiteKernel(0.01, (1e-8, 10.0))
    model = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=2, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)

    def predict(X: Array, levels: Array) -> Array:
        mean, deviation = model.predict(X, return_std=True)
        return _normal_quantiles(mean, deviation, levels)

    return predict


def peers() -> list[Method]:
    """Other libraries for one target."""
    return [
        _peer("ngboost", "NGBoost", "ngboost", "NGBRegressor(Normal), defaults", _ngboost),
        _peer(
            "catboost",
            "CatBoost",
            "catboost",
            "CatBoostRegressor(MultiQuantile, 99 levels), defaults; sorted",
            _catboost,
        ),
        _peer(
            "lightgbm",
            "LightGBM",
            "lightgbm",
            "99 x LGBMRegressor(quantile, n_estimators=200, min_child_samples=5); sorted",
            _lightgbm,
        ),
        _peer(
            "xgboost",
            "XGBoost",
            "xgboost",
            "XGBRegressor(quantileerror, 99 levels, n_estimators=200, learning_rate=0.1, "
            "max_depth=4); sorted",
            _xgboost,
        ),
        _peer(
            "quantile-forest",
            "quantile-forest",
            "quantile_forest",
            "ExtraTreesQuantileRegressor(500)",
            _quantile_forest,
        ),
        _peer(
            "gp",
            "Gaussian process",
            "sklearn",
            "GaussianProcessRegressor(constant x RBF with a length per feature + noise, "
            "normalize_y, 2 restarts), scaled features",
            _gaussian_process,
            scale=True,
        ),
    ]


def _ngboost_joint(X: Any, y: Array, seed: int) -> PeerFit:
    from ngboost import NGBRegressor
    from ngboost.distns import MultivariateNormal

    prepare = numeric_features(X).fit(X)
    # Its start needs targets of moderate size.
    mean, deviation = y.mean(0), y.std(0)
    model = NGBRegressor(
        Dist=MultivariateNormal(y.shape[1]), Base=_tree(seed), verbose=False, random_state=seed
    ).fit(prepare.transform(X), (y - mean) / deviation)

    def moments(X: Array) -> tuple[Array, Array]:
        dist = model.pred_dist(X)
        scale = deviation[:, None] * deviation
        return mean + deviation * np.asarray(dist.loc), scale * np.asarray(dist.cov)

    def predict(X: Array, levels: Array) -> Array:
        loc, covariance = moments(X)
        return _normal_quantiles(loc, np.sqrt(np.diagonal(covariance, 0, 1, 2)), levels)

    def draw(X: Array, n: int, rng: np.random.Generator) -> Array:
        loc, covariance = moments(X)
        z = rng.normal(size=(len(loc), n, loc.shape[1]))
        spread: Array = z @ np.linalg.cholesky(covariance).transpose(0, 2, 1)
        return loc[:, None] + spread

    return PeerFit(prepare, predict, draw)


def joint_peers() -> list[Method]:
    """Other libraries for the joint distribution of several targets."""
    settings = "NGBRegressor(MultivariateNormal), defaults, standardised targets"
    return [Method("ngboost", "NGBoost (multivariate)", settings, _ngboost_joint, "ngboost")]
