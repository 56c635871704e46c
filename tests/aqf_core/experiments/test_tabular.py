"""Choosing tables and methods, splits, and peers behind one interface."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeRegressor

from aqf_core.datasets import DataError, Table, load_bundled
from aqf_core.errors import UnknownNameError
from aqf_core.experiments import tabular
from aqf_core.experiments.methods import Method, own
from aqf_core.experiments.peers import installed, joint_peers, peers
from aqf_core.experiments.published import TABLE_1
from aqf_core.experiments.scoring import DENSE_LEVELS, score_quantiles


def small_table(n: int = 120) -> Table:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=n), "b": rng.choice(["u", "v"], n)})
    X["b"] = X["b"].astype("category")
    X.loc[3, "a"] = np.nan
    y = 3 * X["a"].fillna(0).to_numpy() + (X["b"] == "u") + 0.5 * rng.normal(size=n)
    return Table("small", X, np.asarray(y, float), "regression")


def test_a_split_holds_a_quarter_out_and_repeats() -> None:
    table = small_table()
    X, X_test, y, y_test = tabular.split(table, 4)
    assert (len(y), len(y_test)) == (90, 30)
    assert sorted([*X.index, *X_test.index]) == list(range(120))
    np.testing.assert_array_equal(y_test, tabular.split(table, 4)[3])
    assert not np.array_equal(y_test, tabular.split(table, 5)[3])


def test_without_files_bundled_tables_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AQF_DATA", str(tmp_path))
    tables, remarks = tabular.choose_tables(["yacht", "boston", "kc2", "enb"], None)
    assert [t.name for t in tables] == ["progression", "cancer", "petals"]
    assert "yacht, boston, kc2, enb" in remarks[0]
    assert [t.name for t in tabular.choose_tables([], None)[0]] == [
        "progression",
        "cancer",
        "petals",
    ]
    # A folder that was asked for must hold what was asked for.
    with pytest.raises(DataError, match="does not exist"):
        tabular.choose_tables(["yacht"], str(tmp_path))
    with pytest.raises(UnknownNameError, match="yatch"):
        tabular.choose_tables(["yatch"], None)


def test_methods_are_chosen_by_name_and_group() -> None:
    names = {m.name for m in tabular.choose_methods("regression", ["own"])[0]}
    assert {"qfr", "qfr-fast", "cdfr-paper", "gaussian", "mdn", "qro"} <= names
    assert not names & {m.name for m in peers()}
    everything, absent = tabular.choose_methods("regression", ["all"])
    assert len(everything) + len(absent) == len(tabular.methods_for("regression"))
    assert tabular.choose_methods("classification", ["qfr"])[0] == []
    with pytest.raises(UnknownNameError, match="ngbost"):
        tabular.choose_methods("regression", ["ngbost"])
    assert set(next(iter(TABLE_1.values()))["mae"]) <= names


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "installed", lambda method: method.package is None)
    chosen, absent = tabular.choose_methods("regression", ["qfr", "ngboost", "gp"])
    assert [m.name for m in chosen] == ["qfr"]
    assert absent == ["ngboost", "sklearn"]


def test_results_with_other_settings_or_data_are_not_taken() -> None:
    table = small_table()
    one, two = (own("qfr", "QFR", "QuantileFlowRegressor", preset="fast", steps=s) for s in (5, 6))
    changed = Table("small", table.X, table.y + 1, "regression")
    keys = [
        tabular.jobs_for(t, [m], [0])[0].key
        for t, m in ((table, one), (table, two), (changed, one))
    ]
    assert keys[0] != keys[1] and keys[0] != keys[2]
    assert keys[0] == tabular.jobs_for(small_table(), [one], [0])[0].key


def test_tables_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(DataError, match="splitting needs at least 20"):
        tabular.jobs_for(small_table(10), [], [0])
    rare = Table("rare", small_table().X, np.eye(120)[0], "classification")
    with pytest.raises(DataError, match="one class only"):
        tabular.jobs_for(rare, [], [0])


@pytest.mark.parametrize("method", [m for m in peers() if installed(m)], ids=lambda m: m.name)
def test_installed_peers_beat_the_climate_and_do_not_cross(method: Method) -> None:
    X, X_test, y, y_test = tabular.split(small_table(), 0)
    quantiles = method.fit(X, y, 0).quantiles(X_test, DENSE_LEVELS)
    assert quantiles.shape == (30, 999)
    assert (np.diff(quantiles, axis=1) >= 0).all()
    climate = np.tile(np.quantile(y, DENSE_LEVELS), (30, 1))
    scores = score_quantiles(quantiles, y_test)
    assert scores["crps"] < score_quantiles(climate, y_test)["crps"]


def test_the_joint_peer_is_given_and_gives_back_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    X, X_test, y, _ = tabular.split(load_bundled("petals"), 0)
    seen: list[np.ndarray] = []

    class Regressor:
        """Knows the covariance of the targets it was given and nothing else."""

        def __init__(self, Dist: object, Base: Any, **options: object) -> None:
            assert (Dist, Base.max_depth, Base.random_state) == ("normal of 2", 3, 0)

        def fit(self, X: np.ndarray, y: np.ndarray) -> Regressor:
            seen.append(y)
            return self

        def pred_dist(self, X: np.ndarray) -> SimpleNamespace:
            shape = (len(X), 2, 2)
            return SimpleNamespace(
                loc=np.zeros(shape[:2]), cov=np.broadcast_to(np.cov(seen[0].T), shape)
            )

    modules = {
        "ngboost": {"NGBRegressor": Regressor},
        "ngboost.distns": {"MultivariateNormal": lambda d: f"normal of {d}"},
        "ngboost.learners": {"default_tree_learner": DecisionTreeRegressor(max_depth=3)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    (method,) = joint_peers()
    fit = method.fit(X, y, 0)
    np.testing.assert_allclose(seen[0].std(0), 1.0)
    draws = fit.sample(X_test, 3000, seed=0).reshape(-1, 2)
    np.testing.assert_allclose(np.cov(draws.T), np.cov(y.T), rtol=0.05)
    low, high = fit.quantiles(X_test, np.array([0.1, 0.9]))[0].T
    np.testing.assert_allclose((low + high) / 2, y.mean(0))
    assert abs((draws < low).mean() - 0.1) < 0.01
    assert abs((draws < high).mean() - 0.9) < 0.01
