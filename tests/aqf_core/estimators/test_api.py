"""How estimators are used: in pipelines and searches, step by step, with several targets."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scoringrules
import torch
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import aqf_core
from aqf_core import estimators as est
from aqf_core.estimators import loop, prediction
from aqf_core.metrics import check_score

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 3, (150, 2))
Y = np.sin(2 * X[:, 0]) + (0.1 + 0.3 * X[:, 1]) * RNG.exponential(size=150)
BOTH = np.column_stack([Y, Y**2 + 0.2 * RNG.normal(size=150)])


def quick(**options: Any) -> est.QuantileFlowRegressor:
    return est.QuantileFlowRegressor(**{"members": 2, "steps": 30, "random_state": 0} | options)


def test_estimators_are_imported_when_asked_for() -> None:
    assert aqf_core.QuantileFlowRegressor is est.QuantileFlowRegressor
    with pytest.raises(AttributeError, match="no attribute 'QuantileForest'"):
        aqf_core.QuantileForest  # noqa: B018


def test_a_missing_scikit_learn_is_explained() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import aqf_core; aqf_core.GaussianRegressor"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the estimators of aqf_core need scikit-learn; install it")


def test_pipeline_search_and_cross_validation() -> None:
    pipeline = make_pipeline(StandardScaler(), quick(preset="fast", members=1))
    search = GridSearchCV(
        pipeline,
        {"quantileflowregressor__hidden": [(4,), (16, 16)]},
        scoring=est.SCORERS,
        refit="neg_crps",
        cv=2,
    ).fit(X, Y)
    assert search.best_estimator_.predict(X).shape == (150,)
    for name in est.SCORERS:
        assert np.isfinite(search.cv_results_[f"mean_test_{name}"]).all()
    scores = cross_val_score(quick(members=1), X, Y, cv=2, n_jobs=2)
    assert scores.shape == (2,) and (scores < 0).all()


def test_scorers_prefer_the_better_model() -> None:
    good, bad = quick(steps=150).fit(X, Y), quick(steps=1).fit(X, Y)
    scorers = [*est.SCORERS.values(), est.pinball_scorer(0.9), est.interval_scorer(0.8)]
    for scorer in scorers:
        if scorer is not est.neg_calibration_mae:
            assert scorer(good, X, Y) > scorer(bad, X, Y)
    assert est.neg_crps(good, X, Y) == pytest.approx(2 * est.neg_check_score(good, X, Y), rel=0.02)


def test_crps_agrees_with_an_independent_library() -> None:
    model = quick(members=1, recalibrate="none").fit(X, Y)
    ours = model.predict_dist(X).crps(Y)
    levels = (np.arange(4000) + 0.5) / 4000
    theirs = scoringrules.crps_quantile(Y, model.predict_quantiles(X, levels), levels)
    assert np.allclose(ours, theirs, rtol=2e-3, atol=1e-3 * Y.std())
    gauss = est.GaussianRegressor("fast", steps=20, recalibrate="none", random_state=0).fit(X, Y)
    dist = gauss.predict_dist(X)
    assert np.allclose(dist.crps(Y), scoringrules.crps_normal(Y, dist.mean, dist.std), atol=1e-6)


def test_crps_is_twice_the_pinball_integral() -> None:
    dist = quick().fit(X, Y).predict_dist(X)
    levels = (np.arange(999) + 0.5) / 999
    quantiles = dist.quantile(levels)
    twice = 2 * check_score(levels, quantiles, Y)
    assert twice == pytest.approx(scoringrules.crps_quantile(Y, quantiles, levels).mean(), abs=1e-6)
    assert dist.crps(Y).mean() == pytest.approx(twice, rel=1e-3)


def test_many_quantiles_at_once_are_nearly_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = np.linspace(0.01, 0.99, 99)
    for members in (1, 3):
        model = quick(members=members, steps=100).fit(X, Y)
        exact, crps = model.predict_quantiles(X, levels), model.score(X, Y)
        monkeypatch.setattr(prediction, "BULK", 0)
        many = model.predict_quantiles(X, levels)
        assert (np.diff(many, axis=1) >= 0).all() and not np.array_equal(many, exact)
        assert np.abs(model.predict_cdf(X, many) - levels).mean() < 2e-3
        assert model.score(X, Y) == pytest.approx(crps, rel=1e-3)
        monkeypatch.undo()


def test_quantiles_never_cross_and_invert_the_cdf() -> None:
    model = quick().fit(X, Y)
    levels = np.random.default_rng(1).uniform(size=100_000)
    quantiles = model.predict_quantiles(X[:2], levels)
    assert (np.diff(quantiles[:, np.argsort(levels)], axis=1) >= 0).all()
    levels = np.linspace(0.01, 0.99, 50)
    quantiles = model.predict_quantiles(X, levels)
    assert np.abs(model.predict_cdf(X, quantiles) - levels).max() < 1e-6
    rise = model.predict_cdf(X, quantiles + 1e-5) - model.predict_cdf(X, quantiles - 1e-5)
    assert np.allclose(model.predict_pdf(X, quantiles), rise / 2e-5, rtol=1e-2)


def test_a_bag_covers_what_it_promises() -> None:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (2600, 2))
    y = np.sin(3 * X[:, 0]) + (0.2 + 0.2 * np.abs(X[:, 1])) * rng.gumbel(size=2600)
    model = est.QuantileFlowRegressor(members=5, folds=5, steps=200, random_state=0)
    low, high = model.fit(X[:600], y[:600]).predict_interval(X[600:], coverage=0.9).T
    inside = ((low <= y[600:]) & (y[600:] <= high)).mean()
    # Three standard errors of a share among the 600 rows that the recalibration saw.
    assert abs(inside - 0.9) < 3 * (0.9 * 0.1 / 600) ** 0.5


def test_partial_fit_learns_step_by_step() -> None:
    model = quick(preset="fast", steps=None, batch_size=32)
    scores = []
    for _ in range(30):
        model.partial_fit(X, Y)
        scores.append(model.score(X, Y))
    assert scores[-1] > scores[0] + 0.05
    assert model.fitted_.recalibration is None


def test_warm_start_continues() -> None:
    model = quick(steps=60, warm_start=True, learning_rate=1e-3).fit(X, Y)
    first = model.score(X, Y)
    assert model.fit(X, Y).score(X, Y) > first
    cold = quick(steps=60, learning_rate=1e-3).fit(X, Y)
    assert cold.fit(X, Y).score(X, Y) == pytest.approx(first)


def test_a_validation_set_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    original = loop.train

    def spy(model: Any, data: Any, split: Any, *rest: Any) -> Any:
        seen["split"] = split
        return original(model, data, split, *rest)

    monkeypatch.setattr("aqf_core.estimators.fitting.train", spy)
    model = quick().fit(X[:100], Y[:100], eval_set=(X[100:], Y[100:]))
    assert all(len(rows) == 100 for rows in seen["split"].learn)
    assert all(rows.tolist() == list(range(100, 150)) for rows in seen["split"].held)
    assert model.fitted_.recalibration.observations == 50 + 20


def test_early_stopping_keeps_the_best_weights() -> None:
    noise = np.random.default_rng(2).normal(size=150)
    model = quick(preset="fast", members=1, steps=600, patience=0.1).fit(X, noise)
    history = model.history_
    assert history.steps[-1] < 600
    best = np.min(history.held_out, axis=0)
    assert np.allclose(history.best, best) and best < history.held_out[-1]


def test_interrupting_keeps_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupt(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return original(self, *args)

    original = loop.BagAdamW.step
    monkeypatch.setattr(loop.BagAdamW, "step", interrupt)
    with pytest.warns(UserWarning, match="training was interrupted"):
        model = quick(steps=100).fit(X, Y)
    assert model.history_.interrupted and np.isfinite(model.predict(X)).all()


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    quick(verbose=1).fit(X, Y)
    shown = capsys.readouterr()
    assert "30/30" in shown.err and "held_out" in shown.err
    quick().fit(X, Y)
    assert capsys.readouterr().err == ""


def test_fitting_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    quick().fit(X, Y).sample(X, 2, random_state=1)
    assert torch.equal(torch.rand(1), expected)


def test_presets_differ_where_they_should() -> None:
    paper = est.QuantileFlowRegressor("paper", steps=5).fit(X, Y)
    network = paper.fitted_.model.network
    assert network.dropout == [0.2, 0.1] and not network.skip
    assert paper.fitted_.model.encoding.width == 2 and paper.fitted_.model.members == 1
    assert paper.fitted_.model.head.levels.n == 1 and paper.fitted_.recalibration is None
    assert paper.settings_.learning_rate == 3e-3
    assert est.CDFFlowRegressor("paper", steps=5).fit(X, Y).settings_.learning_rate == 3e-4
    assert est.QuantileFlowRegressor(steps=2).fit(X, Y).fitted_.model.members == 10


# Several targets --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joint() -> est.QuantileFlowRegressor:
    return quick(steps=400).fit(X, BOTH)


def test_joint_shapes_and_dependence(joint: est.QuantileFlowRegressor) -> None:
    draws = joint.sample(X[:20], 500, random_state=0)
    assert draws.shape == (20, 500, 2)
    inside = [np.corrcoef(row[:, 0], row[:, 1])[0, 1] for row in draws]
    assert np.mean(inside) > 0.5
    assert joint.predict(X).shape == (150, 2)
    assert joint.predict_quantiles(X, [0.1, 0.9]).shape == (150, 2, 2)
    assert joint.predict_interval(X).shape == (150, 2, 2)
    assert joint.predict_pdf(X, BOTH).shape == (150,)
    low = joint.predict_quantiles(X[:20], [0.25])[..., 0]
    share = (draws <= low[:, None]).mean(1)
    assert np.abs(share - 0.25).mean() < 0.04
    both = joint.predict_event(X[:20], below=low)
    assert both.mean() > 0.1 and (both <= 0.26).all()  # independent targets would give 1/16
    score = joint.predict_dist(X).energy_score(BOTH)
    assert score.shape == (150,) and (score > 0).all()


def test_joint_density_agrees_with_samples(joint: est.QuantileFlowRegressor) -> None:
    draws = joint.sample(X[:1], 20_000, random_state=0)[0]
    low, high = np.quantile(draws, [0.2, 0.8], axis=0)
    share = ((draws >= low) & (draws <= high)).all(1).mean()
    steps = (np.arange(250) + 0.5) / 250
    grid = np.stack(np.meshgrid(*(low + np.outer(steps, high - low)).T), -1).reshape(-1, 2)
    density = joint.predict_pdf(np.repeat(X[:1], len(grid), axis=0), grid)
    assert density.mean() * np.prod(high - low) == pytest.approx(share, abs=0.03)


def test_joint_predictions_do_not_depend_on_other_rows(joint: est.QuantileFlowRegressor) -> None:
    assert np.allclose(joint.predict(X)[7], joint.predict(X[7:8])[0])


def test_names_of_targets_appear(joint: est.QuantileFlowRegressor) -> None:
    frame, targets = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(BOTH, columns=["y", "z"])
    model = quick(steps=5).fit(frame, targets)
    quantiles = model.predict_quantiles(frame, [0.1, 0.9])
    assert list(quantiles.columns) == [("y", 0.1), ("y", 0.9), ("z", 0.1), ("z", 0.9)]
    assert list(model.sample(frame, 2).columns) == [("y", 0), ("y", 1), ("z", 0), ("z", 1)]
    assert model.predict_cdf(frame, BOTH).columns.tolist() == ["y", "z"]


# Classes ----------------------------------------------------------------------------------------


def test_two_classes_are_trained_by_the_brier_score() -> None:
    head = est.classifier.ClassHead(2).double()
    h, y = torch.randn(50, head.n_params).double(), torch.randint(2, (50,)).double()
    probability = head.probabilities(h)[:, 1]
    space = aqf_core.OutputSpace().double()
    assert torch.allclose(head.loss(h, y, space), (probability - y).square(), rtol=0, atol=1e-15)


def test_ordered_classes() -> None:
    labels = np.array(["low", "mid", "high"])[np.digitize(Y, [0.0, 1.0])]
    y = pd.Series(pd.Categorical(labels, ["low", "mid", "high"], ordered=True))
    model = est.CDFFlowClassifier(members=2, steps=200, random_state=0).fit(pd.DataFrame(X), y)
    assert model.classes_.tolist() == ["low", "mid", "high"]
    table = model.predict_proba(pd.DataFrame(X))
    assert list(table.columns) == ["low", "mid", "high"]
    assert np.allclose(table.sum(axis=1), 1)
    assert model.score(pd.DataFrame(X), labels) > 0.6
    assert not hasattr(model, "predict_quantiles")
    assert not hasattr(est.QuantileFlowRegressor(), "predict_proba")


def test_no_warnings_in_ordinary_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = quick().fit(X, Y).predict_interval(X).T
    assert (low < high).all()
