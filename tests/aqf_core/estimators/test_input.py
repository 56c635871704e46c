"""Wrong input is refused early, in one clear sentence; odd but legal input works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from aqf_core import LevelError, UnknownNameError
from aqf_core.estimators import CDFFlowClassifier, PoissonRegressor, QuantileFlowRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X[:, 0] + RNG.normal(size=60)


def quick(**options: Any) -> QuantileFlowRegressor:
    return QuantileFlowRegressor(**{"preset": "fast", "steps": 10, "random_state": 0} | options)


@pytest.fixture(scope="module")
def model() -> QuantileFlowRegressor:
    return quick().fit(X, Y)


def with_value(a: np.ndarray, value: float) -> np.ndarray:
    a = a.copy()
    a.flat[1] = value
    return a


BAD_FITS = {
    "NaN in y": (X, with_value(Y, np.nan), "Input y contains NaN"),
    "infinity in y": (X, with_value(Y, np.inf), "Input y contains infinity"),
    "infinity in X": (with_value(X, np.inf), Y, "Input X contains infinity"),
    "constant y": (X, np.full(60, 2.5), r"y is constant \(2.5 in every row\)"),
    "one row": (X[:1], Y[:1], "minimum of 2 is required"),
    "no rows": (X[:0], Y[:0], "0 sample"),
    "no columns": (X[:, :0], Y, "0 feature"),
    "different lengths": (X, Y[:50], "inconsistent numbers of samples"),
    "text": (np.full((60, 2), "red"), Y, "X holds text .*declare its column categorical"),
    "text column": (
        pd.DataFrame({"size": Y, "colour": "red"}),
        Y,
        "column 'colour' holds text .*declare it categorical",
    ),
    "one constant target": (X, np.column_stack([Y, 0 * Y + 3]), r"column 1 of y is constant \(3 "),
    "text in y": (X, np.where(Y > 0, "a", "b"), "y holds text .*CDFFlowClassifier for labels"),
    "text objects in y": (X, np.where(Y > 0, "a", "b").astype(object), "y holds text"),
    "no y": (X, None, "y"),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_bad_training_data(case: str) -> None:
    rows, targets, sentence = BAD_FITS[case]
    with pytest.raises(ValueError, match=sentence):
        quick().fit(rows, targets)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 95.0, np.nan])
def test_levels_must_be_probabilities(model: QuantileFlowRegressor, level: float) -> None:
    for ask in (
        lambda: model.predict_quantiles(X, [0.5, level]),
        lambda: model.predict_interval(X, level),
        lambda: model.predict_dist(X).quantile(level),
    ):
        with pytest.raises(LevelError, match="strictly between 0 and 1"):
            ask()
    with pytest.raises(LevelError, match="none was given"):
        model.predict_quantiles(X, [])


def test_bad_questions(model: QuantileFlowRegressor) -> None:
    with pytest.raises(ValueError, match="X has 2 features, but .* expecting 3"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="0 sample"):
        model.predict(X[:0])
    with pytest.raises(ValueError, match="2 targets, but the model was fitted with 1"):
        model.score(X, np.column_stack([Y, Y]))
    with pytest.raises(ValueError, match="2 targets, but the model was fitted with 1"):
        quick().partial_fit(X, Y).partial_fit(X, np.column_stack([Y, Y]))
    with pytest.raises(ValueError, match="fits neither 60 rows"):
        model.predict_cdf(X, Y[:7])
    with pytest.raises(ValueError, match="y contains NaN"):
        model.predict_cdf(X, np.nan)
    with pytest.raises(ValueError, match="exactly one of below, above and between"):
        model.predict_event(X, below=1.0, above=2.0)
    with pytest.raises(ValueError, match="choose from mean, median"):
        model.predict(X, "mode")


def test_bad_settings() -> None:
    with pytest.raises(UnknownNameError, match="unknown preset 'fastest'; choose from default"):
        quick(preset="fastest").fit(X, Y)
    with pytest.raises(ValueError, match="members must be a whole number of at least 1, got 0"):
        quick(members=0).fit(X, Y)
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        quick(learning_rate=-1.0).fit(X, Y)
    with pytest.raises(ValueError, match="column 'z', which X does not have"):
        quick(categorical_features=["z"]).fit(X, Y)
    with pytest.raises(ValueError, match="outside the support"):
        quick(support=(0, None)).fit(X, Y)
    with pytest.raises(ValueError, match="at least one non-zero"):
        quick().fit(X, Y, sample_weight=np.zeros(60))
    with pytest.raises(ValueError, match="eval_set has another number of targets"):
        quick().fit(X, Y, eval_set=(X, np.column_stack([Y, Y])))
    with pytest.raises(ValueError, match="needs counts"):
        PoissonRegressor("fast", steps=5).fit(X, Y)


BAD_SETTINGS = {
    "one size": ({"hidden": 32}, "hidden must be a sequence of layer sizes"),
    "negative size": ({"hidden": (-3,)}, "hidden must hold positive whole numbers"),
    "certain dropout": ({"dropout": (1.0,)}, "dropout must hold shares"),
    "one dropout": ({"dropout": 0.2}, "dropout must be a sequence of shares"),
    "half a step": ({"steps": 10.5}, "steps must be a whole number of at least 1, got 10.5"),
    "text": ({"steps": "10"}, "steps must be a whole number"),
    "float members": ({"members": 2.0}, "members must be a whole number"),
    "impatience": ({"patience": -1}, "patience must be positive"),
    "device": ({"device": "gpuu"}, "device 'gpuu' cannot be used here .*; choose 'auto'"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_settings_of_a_wrong_kind(case: str) -> None:
    options, sentence = BAD_SETTINGS[case]
    with pytest.raises(ValueError, match=sentence):
        quick(**options).fit(X, Y)


def test_rows_without_weight_do_not_count() -> None:
    weights = np.zeros(60)
    weights[3] = 1
    with pytest.raises(ValueError, match="positive in 1 of 60 rows, but learning needs at least 2"):
        quick().fit(X, Y, sample_weight=weights)
    weights[4] = 1
    with pytest.raises(ValueError, match=r"y is constant \(1 in every row\)"):
        quick().fit(X, np.where(weights > 0, 1.0, Y), sample_weight=weights)


def test_continuing_needs_the_same_network_and_columns() -> None:
    model = quick(warm_start=True, hidden=(8,)).fit(X, Y)
    with pytest.raises(ValueError, match="X has 2 features, but .* expecting 3"):
        model.fit(X[:, :2], Y)
    with pytest.raises(ValueError, match=r"hidden is \(9,\), but .* fitted with \(8,\)"):
        model.set_params(hidden=(9,)).fit(X, Y)
    frame = pd.DataFrame({"size": Y, "colour": pd.Categorical(["b", "c"] * 30)})
    model = quick(warm_start=True).fit(frame, Y)
    # A new category that is sorted before the others must not take the place of one of them.
    model.fit(frame.assign(colour=pd.Categorical(["a", "c"] * 30)), Y)
    assert model.columns_.categories == [None, ["b", "c"]]
    labels = np.where(Y > 0, "b", "c")
    classifier = CDFFlowClassifier("fast", steps=5, warm_start=True).fit(X, labels)
    with pytest.raises(ValueError, match="label 'a', which is not among the classes"):
        classifier.fit(X, np.where(Y > 0, "a", "b"))


def test_bad_events_and_draws(model: QuantileFlowRegressor) -> None:
    with pytest.raises(ValueError, match=r"between must be a pair \(low, high\), got 3"):
        model.predict_event(X, between=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="between needs low <= high"):
        model.predict_event(X, between=(2.0, 1.0))
    with pytest.raises(ValueError, match="number of draws must be a whole number"):
        model.sample(X, 2.5)  # type: ignore[arg-type]
    with pytest.raises(LevelError, match="coverage must be one number"):
        model.predict_interval(X, [0.5, 0.9])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="eval_set must be a pair"):
        quick().fit(X, Y, eval_set=X)  # type: ignore[arg-type]
    draws = [model.sample(X, 2, np.random.RandomState(3)) for _ in range(2)]
    assert np.array_equal(*draws)


def test_bad_labels() -> None:
    with pytest.raises(ValueError, match="name a label twice"):
        CDFFlowClassifier("fast", steps=5, order=["a", "a", "b"]).fit(X, np.where(Y > 0, "a", "b"))
    with pytest.raises(ValueError, match="single class"):
        CDFFlowClassifier("fast", steps=5).fit(X, np.zeros(60, dtype=int))
    with pytest.raises(ValueError, match="label 'c', which is not among the classes"):
        labels = np.where(Y > 0, "a", "c")
        CDFFlowClassifier("fast", steps=5, order=["a", "b"]).fit(X, labels)


def test_categories_and_missing_values() -> None:
    colour = RNG.choice(["red", "green", "blue"], 200)
    size = RNG.normal(size=200)
    y = size + np.where(colour == "red", 5.0, 0.0) + 0.1 * RNG.normal(size=200)
    size[::7] = np.nan
    frame = pd.DataFrame({"size": size, "colour": pd.Categorical(colour)})
    model = quick(steps=150).fit(frame, y)
    known = pd.DataFrame({"size": [0.0, 0.0, np.nan, 0.0], "colour": ["red", "blue", "red", "?"]})
    known["colour"] = known["colour"].astype("category")
    red, blue, missing, _ = model.predict(known)
    assert red - blue > 3 and missing > 3
    low, high = model.predict_interval(known, 0.9).to_numpy().T
    assert high[2] - low[2] > 1.5 * (high[0] - low[0])  # an unknown size is less certain
    # The same columns as an array, declared by position.
    array = np.column_stack([size.astype(object), colour.astype(object)])
    same = quick(steps=150, categorical_features=[1]).fit(array, y)
    assert np.array_equal(same.predict(array), model.predict(frame))


def test_names_of_single_rows_tell_nothing() -> None:
    frame = pd.DataFrame({"size": Y, "name": pd.Categorical([f"n{k}" for k in range(60)])})
    frame["town"] = pd.Categorical(["Ulm", "Bonn", *["Kiel"] * 58])
    model = quick().fit(frame, Y)
    assert model.columns_.categories == [None, [], ["Kiel"]]
    # A town that one row had is as good as one that none had.
    towns = frame.head(2).assign(size=0.0, town=pd.Categorical(["Ulm", "Rom"]))
    assert np.ptp(model.predict(towns)) == 0


def test_large_offsets_keep_their_digits() -> None:
    # Few steps, before rounding decides which weights are the best.
    shifted = quick(steps=20).fit(1e6 * X + 1e9, Y + 1e9)
    plain = quick(steps=20).fit(X, Y)
    assert np.allclose(shifted.predict(1e6 * X + 1e9) - 1e9, plain.predict(X), atol=1e-2)


def test_bounded_targets_stay_inside() -> None:
    y = np.exp(Y)
    model = quick(steps=80, support=(0, None)).fit(X, y)
    assert model.predict_quantiles(X, [1e-6, 0.5]).min() >= 0
    assert model.predict_cdf(X, -1.0).max() == 0 and model.predict_pdf(X, -1.0).max() == 0
    dist, bound = model.predict_dist(X), np.zeros(60)
    assert np.allclose(dist.crps(bound - 2.0), dist.crps(bound) + 2.0)
    share = quick(steps=20, support=(0, 1)).fit(X, y / y.max())
    assert share.predict_cdf(X, 1.5).min() == 1 and share.predict_cdf(X, np.inf).min() == 1


def test_positive_targets_near_zero_get_a_bound() -> None:
    y = np.exp(4 * X[:, 0])
    model = quick().fit(X, y)
    assert model.predict_quantiles(X, [1e-6]).min() >= 0
    # The unit of the target does not matter, however large.
    large = quick().fit(X, 2.0**100 * y)
    assert np.allclose(large.predict(X), 2.0**100 * model.predict(X), rtol=1e-3)
    assert large.predict_cdf(X, -1.0).max() == 0


def test_a_bound_is_not_guessed_where_rows_may_contradict_it() -> None:
    y = np.exp(4 * X[:, 0])
    for model in (
        quick().partial_fit(X, y).partial_fit(X, y - 1),
        quick(warm_start=True).fit(X, y).fit(X, y - 1),
        quick().fit(X, y, eval_set=(X, y - 1)),
        quick(support=None).fit(X, y),
        quick().fit(X, y + 1e3),
    ):
        assert model.fitted_.model.space.is_linear
    with pytest.raises(ValueError, match="a pair, None or 'auto', got 'positive'"):
        quick(support="positive").fit(X, y)


def test_constant_and_extreme_features_do_no_harm() -> None:
    odd = np.column_stack([X, np.full(60, 7.0), np.full(60, np.nan), 1e300 * X[:, 0]])
    model = quick(steps=30).fit(odd, Y)
    far = odd[:2].copy()
    far[0, 0] = 1e30
    assert np.isfinite(model.predict_quantiles(far, [0.01, 0.99])).all()


@pytest.mark.parametrize("rows", [2, 3, 5, 11])
def test_tiny_data(rows: int) -> None:
    model = QuantileFlowRegressor(steps=10, random_state=0).fit(X[:rows], Y[:rows])
    assert np.isfinite(model.predict_interval(X)).all()
