"""One rule of scoring for all methods: identities it must satisfy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from aqf_core.experiments.scoring import (
    DENSE_LEVELS,
    energy,
    interpolate_levels,
    score_joint,
    score_probabilities,
    score_quantiles,
)
from aqf_core.metrics import calibration_mae_floor, crps_gaussian


def gaussian_case(n: int = 1500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    mean = rng.normal(size=n)
    y = mean + 2 * rng.normal(size=n)
    return mean, y, mean[:, None] + 2 * stats.norm.ppf(DENSE_LEVELS)


def test_scores_of_the_true_gaussian() -> None:
    mean, y, quantiles = gaussian_case()
    scores = score_quantiles(quantiles, y)
    exact = float(crps_gaussian(mean, np.full_like(mean, 2.0), y))
    assert abs(scores["crps"] / exact - 1) < 2e-3
    # The self-check that every table shows.
    assert 0.985 < scores["crps"] / (2 * scores["check_score"]) < 0.998
    assert scores["mae"] == pytest.approx(np.abs(y - mean).mean())
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-6)
    assert abs(scores["coverage_90"] - 0.9) < 0.02
    assert scores["calibration_mae"] < 3 * calibration_mae_floor(len(y))
    assert len(scores["observed"]) == 99
    assert abs(scores["observed"][49] - 0.5) < 0.03


def test_a_wrong_spread_costs_score_and_calibration() -> None:
    _, y, quantiles = gaussian_case()
    right, wrong = (score_quantiles(q, y) for q in (quantiles, quantiles * 2))
    assert wrong["crps"] > right["crps"]
    assert wrong["calibration_mae"] > right["calibration_mae"]


def test_few_levels_come_close_to_many() -> None:
    _, y, quantiles = gaussian_case()
    grid = np.arange(1, 100) / 100
    few = interpolate_levels(grid, quantiles[:, 9::10][:, ::-1], DENSE_LEVELS)
    assert (np.diff(few, axis=1) >= 0).all()
    full, coarse = (score_quantiles(q, y) for q in (quantiles, few))
    assert coarse["crps"] == pytest.approx(full["crps"], rel=2e-3)
    assert coarse["check_score"] == pytest.approx(full["check_score"], rel=1e-9)


def test_energy_of_independent_targets_grows_as_the_root() -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(300, 200, 8))
    one = energy(draws[..., :1], draws[:, 0, :1] * 0 + rng.normal(size=(300, 1)))
    many = energy(draws, rng.normal(size=(300, 8)))
    assert abs(one - 1 / np.sqrt(np.pi)) < 0.06
    # E|Z - Z'| / (2 sqrt d) for d = 8.
    assert abs(many - 0.6855) < 0.02


def test_joint_scores_judge_dependence() -> None:
    rng = np.random.default_rng(2)
    covariance = np.array([[1.0, 0.95], [0.95, 1.0]])
    root = np.linalg.cholesky(covariance)
    y = rng.normal(size=(400, 2)) @ root.T
    draws = rng.normal(size=(400, 256, 2))
    table = np.broadcast_to(stats.norm.ppf(DENSE_LEVELS), (400, 2, 999))
    right, wrong = (score_joint(lambda _: table, d, y) for d in (draws @ root.T, draws))
    assert right["crps"] == wrong["crps"] == pytest.approx(np.mean(right["crps_targets"]))
    assert right["energy"] < wrong["energy"] - 0.01


def test_probabilities_of_certainty() -> None:
    label = np.array([0.0, 1.0, 1.0, 0.0])
    perfect = score_probabilities(label, label)
    assert (perfect["accuracy"], perfect["auc"], perfect["brier"]) == (1, 1, 0)
    assert 0 <= perfect["log_loss"] < 1e-5
    blind = score_probabilities(np.full(4, 0.5), label)
    assert (blind["auc"], blind["brier"]) == (0.5, 0.25)
    assert blind["log_loss"] == pytest.approx(np.log(2))
