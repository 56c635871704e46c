"""The methods of the tabular experiments: ours, the paper's baselines, and reference models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Method",
    "OwnFit",
    "classifiers",
    "joint_regressors",
    "numeric_features",
    "own",
    "regressors",
]

Array = NDArray[np.float64]

# Up to this many rows at a time, so that the pooled quantiles of 999 levels are exact.
ROWS = 128


@dataclass(frozen=True)
class Method:
    """One row of a table.

    Attributes:
        name: short, for commands and files.
        label: for reports.
        settings: everything that was set; stored results with other settings are computed again.
        fit: (X, y, seed) -> the fitted method, which has what its task needs:
            `quantiles(X, levels)`, (n, K), or (n, d, K) for several targets, and for them
            `sample(X, n, seed)`, (rows, n, d); or `probability(X)` of the label 1, (n,).
        package: what has to be installed, or None.
    """

    name: str
    label: str
    settings: str
    fit: Callable[[Any, Array, int], Any]
    package: str | None = None


class OwnFit:
    """A fitted estimator of `aqf_core.estimators`."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def quantiles(self, X: Any, levels: Array) -> Array:
        parts = range(0, len(X), ROWS)
        predict = self.estimator.predict_dist
        return np.concatenate([predict(X[i : i + ROWS]).quantile(levels) for i in parts])

    def sample(self, X: Any, n: int, seed: int) -> Array:
        draws: Array = self.estimator.predict_dist(X).sample(n, seed)
        return draws

    def probability(self, X: Any) -> Array:
        return np.asarray(self.estimator.predict_proba(X))[:, 1]


def own(name: str, label: str, estimator: str, **options: Any) -> Method:
    """A method from the name of an estimator and its arguments."""
    from .. import estimators
    from ..estimators.presets import resolve

    make = getattr(estimators, estimator)
    given = make(**options).get_params(deep=False)
    chosen = asdict(resolve(**given))
    rest = {k: v for k, v in options.items() if k != "preset" and k not in chosen}
    listed = ", ".join(f"{k}={v}" for k, v in (rest | chosen).items())

    def fit(X: Any, y: Array, seed: int) -> OwnFit:
        return OwnFit(make(**options, random_state=seed).fit(X, y))

    return Method(name, label, f"{estimator}({listed})", fit)


class PipelineFit:
    """A fitted classifier of scikit-learn."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def probability(self, X: Any) -> Array:
        return np.asarray(self.pipeline.predict_proba(X))[:, 1]


def numeric_features(X: Any, scale: bool = False) -> Any:
    """Preparation for models that need complete numbers: medians for gaps, indicators for text.

    Args:
        X: DataFrame whose columns say what they hold.
        scale: whether numbers are standardised.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    text = [name for name in X.columns if str(X[name].dtype) == "category"]
    numbers = [name for name in X.columns if name not in text]
    steps = [SimpleImputer(strategy="median", keep_empty_features=True)]
    steps += [StandardScaler()] if scale else []
    return make_column_transformer(
        (make_pipeline(*steps), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text),
    )


def _classifier(name: str, label: str, settings: str, make: Callable[[int], Any]) -> Method:
    def fit(X: Any, y: Array, seed: int) -> PipelineFit:
        from sklearn.pipeline import make_pipeline

        pipeline = make_pipeline(numeric_features(X, scale=True), make(seed))
        return PipelineFit(pipeline.fit(X, y))

    return Method(name, label, settings, fit, "sklearn")


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=2000)


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(500, min_samples_leaf=3, random_state=seed, n_jobs=1)


def _mlp(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(
        (64, 64), early_stopping=True, n_iter_no_change=20, max_iter=500, random_state=seed
    )


def regressors() -> list[Method]:
    """Table 1 of the paper, with the library's recipe and with the paper's."""
    kinds: list[tuple[str, str, str, dict[str, Any]]] = [
        ("gaussian", "Gaussian", "GaussianRegressor", {}),
        ("qro", "QRO", "QuantileGridRegressor", {}),
        ("mdn", "MDN", "MixtureDensityRegressor", {}),
        ("qfr", "QFR", "QuantileFlowRegressor", {}),
        ("cdfr", "CDFR", "CDFFlowRegressor", {"learning_rate": 3e-4}),
    ]
    ours = [own(name, label, kind) for name, label, kind, _ in kinds]
    # How long the paper trained is not known; this is long enough for its smaller learning rate.
    paper = [
        own(
            f"{name}-paper", f"{label}, paper's recipe", kind, preset="paper", steps=2000, **options
        )
        for name, label, kind, options in kinds
    ]
    return [*ours, own("qfr-fast", "QFR, fast", "QuantileFlowRegressor", preset="fast"), *paper]


def joint_regressors() -> list[Method]:
    """Methods for several targets at once."""
    return [
        own("qfr", "QFR", "QuantileFlowRegressor"),
        own("qfr-fast", "QFR, fast", "QuantileFlowRegressor", preset="fast"),
        own("cdfr", "CDFR", "CDFFlowRegressor"),
        own("gaussian-mrf", "Gaussian MRF", "GaussianMRFRegressor"),
        own("mv-quantile", "Quantile (Gaussian)", "MultivariateQuantileRegressor"),
        own("gaussian", "Gaussian, independent", "GaussianRegressor"),
    ]


def classifiers() -> list[Method]:
    """Methods for two classes."""
    mlp = "MLPClassifier((64, 64), early_stopping, n_iter_no_change=20, max_iter=500), scaled"
    forest = "RandomForestClassifier(500, min_samples_leaf=3)"
    return [
        own("cdfr", "CDFR", "CDFFlowClassifier"),
        own("cdfr-fast", "CDFR, fast", "CDFFlowClassifier", preset="fast"),
        own(
            "cdfr-paper",
            "CDFR, paper's recipe",
            "CDFFlowClassifier",
            preset="paper",
            steps=2000,
            learning_rate=3e-4,
        ),
        own("network", "same network, likelihood", "CDFFlowClassifier", objective="nll"),
        _classifier("mlp", "neural network (MLP)", mlp, _mlp),
        _classifier("logistic", "logistic regression", "LogisticRegression(), scaled", _logistic),
        _classifier("forest", "random forest", forest, _forest),
    ]
