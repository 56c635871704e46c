"""Scores of known predictions have the values theory gives them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import gamma
from scipy.stats import norm

from aqf_core.errors import LevelError, ShapeError
from aqf_core.metrics import calibration_mae
from aqf_det.evaluation import score_pairs, summarise
from aqf_det.evaluation.scores import CALIBRATION_LEVELS, pair_energy
from aqf_det.quantile_tables import check_levels, interpolated, quantiles_at, spaced

from .synthetic_boxes import gaussian_samples, pairs_of

LEVELS = np.arange(1, 200) / 200


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pairs_of(gaussian_samples(250), tmp_path_factory.mktemp("pairs"))


def test_true_gaussian_predictions_score_as_theory_says(pairs):
    summary = summarise(pairs, replicates=300).overall
    value = {name: item.value for name, item in summary.metrics.items()}
    assert summary.n_pairs == 750
    assert value["crps"] == pytest.approx(4 / np.sqrt(np.pi), rel=0.05)
    assert value["nll"] == pytest.approx(0.5 * np.log(2 * np.pi * np.e) + np.log(4), abs=0.05)
    for percent in (50, 80, 90, 95):
        assert value[f"picp_{percent}"] == pytest.approx(percent / 100, abs=0.025)
        width = 2 * 4 * norm.ppf(0.5 + percent / 200)
        assert value[f"mpiw_{percent}"] == pytest.approx(width, rel=1e-3)
    # Expected value for a perfect model on n independent points: about 0.313 / sqrt(n).
    assert value["calibration_mae"] < 2.5 * 0.313 / np.sqrt(750)
    assert value["calibration_mae_pooled"] < 2.5 * 0.313 / np.sqrt(3000)
    # A d-dimensional normal has E|X - X'| / 2 = sigma Gamma((d + 1) / 2) / Gamma(d / 2).
    assert value["energy"] == pytest.approx(4 * gamma(2.5) / gamma(2), rel=0.05)


def test_calibration_agrees_with_the_core(pairs):
    scores = score_pairs(pairs)
    table = quantiles_at(pairs.levels, pairs.quantiles, CALIBRATION_LEVELS)
    per_side = [
        calibration_mae(CALIBRATION_LEVELS, table[..., side], pairs.truth[:, side])
        for side in range(4)
    ]
    pooled = calibration_mae(CALIBRATION_LEVELS, np.moveaxis(table, 1, -1), pairs.truth)
    metrics = summarise(pairs, replicates=0, scores=scores).overall.metrics
    assert metrics["calibration_mae"].value == pytest.approx(np.mean(per_side), abs=1e-6)
    assert metrics["calibration_mae_pooled"].value == pytest.approx(pooled, abs=1e-6)


def test_chunks_change_nothing(pairs):
    whole, parts = score_pairs(pairs), score_pairs(pairs, chunk=64)
    np.testing.assert_array_equal(whole.below, parts.below)
    for name, values in whole.per_coordinate.items():
        np.testing.assert_allclose(parts.per_coordinate[name], values, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("factor, direction", [(0.5, -1), (2.0, 1)])
def test_wrong_spread_is_punished(tmp_path, factor, direction):
    samples = gaussian_samples(80)
    good = summarise(pairs_of(samples, tmp_path), replicates=0).overall.metrics
    wrong = gaussian_samples(80, claimed=4.0 * factor)
    bad = summarise(pairs_of(wrong, tmp_path), replicates=0).overall.metrics
    for name in ("crps", "nll", "energy", "winkler_90", "calibration_mae"):
        assert bad[name].value > good[name].value, name
    assert direction * (bad["picp_80"].value - good["picp_80"].value) > 0.1


def test_few_levels_leave_unreachable_intervals_open(pairs):
    keep = np.isin(np.round(LEVELS, 3), np.round(np.arange(1, 10) / 10, 3))
    coarse = replace(pairs, levels=LEVELS[keep], quantiles=pairs.quantiles[:, keep])
    metrics = summarise(coarse, replicates=0).overall.metrics
    assert metrics["picp_80"].value == pytest.approx(0.8, abs=0.03)
    assert np.isnan(metrics["picp_90"].value)
    assert np.isfinite(metrics["calibration_mae"].value)


def test_energy_of_dependent_samples_beats_independent_draws():
    rng = np.random.default_rng(0)
    # Both horizontal sides move together: the joint samples know it, the marginals do not.
    shift = rng.standard_normal((400, 1))
    truth = np.concatenate([shift, shift * 0, shift + 50, shift * 0 + 50], 1) * 1.0
    truth[:, [1, 3]] += rng.standard_normal((400, 2))
    common = rng.standard_normal((400, 100, 1))
    samples = np.concatenate([common, common * 0, common + 50, common * 0 + 50], 2)
    samples[..., [1, 3]] += rng.standard_normal((400, 100, 2))
    quantiles = norm.ppf(LEVELS)[None, :, None] + np.array([0, 0, 50, 50.0])
    quantiles = np.repeat(quantiles, 400, axis=0)
    joint, source = pair_energy(truth, LEVELS, quantiles, samples, rng)
    marginal, other = pair_energy(truth, LEVELS, quantiles, None, rng)
    assert (source, other) == ("samples", "independent")
    assert joint.mean() < marginal.mean() * 0.99


def test_tables_of_quantiles():
    table = norm.ppf(LEVELS)[None, :, None] * np.array([1.0, 2.0, 3.0, 4.0])
    at = quantiles_at(LEVELS, table, [0.1, 0.33, 0.9])
    np.testing.assert_allclose(at[0, :, 1], 2 * norm.ppf([0.1, 0.33, 0.9]), atol=1e-4)
    outside = quantiles_at(LEVELS[50:150], table[:, 50:150], [0.01])
    np.testing.assert_allclose(outside[0, 0], table[0, 50])
    tied = np.zeros((1, 3, 4))
    assert (np.diff(spaced(tied), axis=1) > 0).all()
    assert spaced(table) == pytest.approx(table)
    density = interpolated([0.2, 0.5, 0.8], tied).log_prob(torch.zeros(1, 4))
    assert density.isfinite().all()


@pytest.mark.parametrize("levels", [[0.0, 0.5], [0.5, 1.0], [0.5, 0.4], [], [0.5, float("nan")]])
def test_bad_levels(levels):
    with pytest.raises(LevelError):
        check_levels(levels)


def test_bad_tables():
    with pytest.raises(ShapeError, match="3 levels"):
        quantiles_at([0.1, 0.5, 0.9], np.zeros((2, 4, 4)), [0.5])
    with pytest.raises(LevelError):
        quantiles_at([0.1, 0.5], np.zeros((2, 2, 4)), [1.5])
