"""Intervals over images, and paired comparison of two models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aqf_core.errors import UnknownNameError
from aqf_det.evaluation import Estimate, common_pairs, paired_bootstrap, summarise
from aqf_det.evaluation.bootstrap import image_weights, replicate_means

from .synthetic_boxes import gaussian_samples, pairs_of


def test_interval_of_a_mean_matches_normal_theory():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(400)
    replicates = replicate_means(values, np.arange(400), image_weights(400, 3000, 1))
    estimate = Estimate.from_replicates(replicates)
    half = 1.96 * values.std() / np.sqrt(400)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.012)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.012)


def test_objects_of_one_image_are_resampled_together():
    rng = np.random.default_rng(0)
    image = np.repeat(np.arange(50), 10)
    values = rng.standard_normal(50)[image]  # identical within an image
    clustered = Estimate.from_replicates(replicate_means(values, image, image_weights(50, 800, 0)))
    loose = Estimate.from_replicates(
        replicate_means(values, np.arange(500), image_weights(500, 800, 0))
    )
    assert clustered.high - clustered.low > 2.5 * (loose.high - loose.low)


def test_images_without_pairs_and_empty_data():
    weights = image_weights(5, 200, 0)
    means = replicate_means(np.array([1.0, 3.0]), np.array([1, 1]), weights)
    assert means[0] == 2 and np.isnan(means).any()  # some replicates miss image 1
    assert Estimate.from_replicates(means).low == 2
    empty = replicate_means(np.zeros(0), np.zeros(0, int), weights)
    assert np.isnan(Estimate.from_replicates(empty).value)


def test_reflected_interval_holds_the_truth_of_a_calibration_error():
    """Replicates of |noise| lie above its value; the reflected interval reaches below."""
    values = np.random.default_rng(3).standard_normal((200, 30))
    means = np.abs(replicate_means(values, np.arange(200), image_weights(200, 500, 0))).mean(1)
    plain, reflected = (Estimate.from_replicates(means, reflect) for reflect in (False, True))
    assert plain.low > plain.value * 0.95
    assert reflected.low < 0.6 * reflected.value <= reflected.value <= reflected.high


def test_identical_models_differ_by_nothing(tmp_path):
    pairs = pairs_of(gaussian_samples(30), tmp_path)
    for item in paired_bootstrap(pairs, pairs, replicates=100).values():
        assert item.difference == item.low == item.high == 0
        assert not item.excludes_zero


def test_a_better_spread_wins_with_a_narrow_paired_interval(tmp_path):
    good = pairs_of(gaussian_samples(80), tmp_path)
    bad = pairs_of(gaussian_samples(80, claimed=2.0), tmp_path)
    result = paired_bootstrap(bad, good, ["crps", "calibration_mae"], replicates=500)
    crps = result["crps"]
    assert crps.excludes_zero and crps.low > 0
    assert crps.difference == pytest.approx(crps.first - crps.second)
    assert crps.n_pairs == 240 and crps.n_images == 80
    # Pairing removes the variation between images: compare with the interval of one model alone.
    alone = summarise(good, replicates=500).overall.metrics["crps"]
    assert crps.high - crps.low < 0.7 * (alone.high - alone.low)
    assert result["calibration_mae"].difference > 0


def test_only_common_truths_are_compared_in_any_order(tmp_path):
    samples = gaussian_samples(20)
    first = pairs_of(samples, tmp_path)
    second = pairs_of(samples[::-1][:15], tmp_path)
    one, two = common_pairs(first, second)
    assert len(one) == len(two) == 45 and one.image_ids == two.image_ids
    np.testing.assert_array_equal(one.truth, two.truth)
    np.testing.assert_array_equal(one.image, two.image)


def test_duplicates_are_compared_by_rank_under_the_paper_protocol(tmp_path):
    samples = gaussian_samples(10)
    for sample in samples:
        found = sample["pred_instances"]
        for key, value in found.items():
            found[key] = value.repeat(2, *[1] * (value.dim() - 1))
    pairs = pairs_of(samples, tmp_path)
    assert pairs.strict.sum() == 30 and pairs.paper.sum() == 60
    assert len(common_pairs(pairs, pairs, "paper")[0]) == 60
    assert len(common_pairs(pairs, pairs, "strict")[0]) == 30


def test_comparisons_that_make_no_sense(tmp_path):
    pairs = pairs_of(gaussian_samples(5), tmp_path)
    other = replace(pairs, image_ids=tuple(f"x{i}" for i in range(5)))
    with pytest.raises(ValueError, match="no ground truth in common"):
        paired_bootstrap(pairs, other)
    with pytest.raises(ValueError, match="different classes"):
        paired_bootstrap(pairs, replace(pairs, classes=("a", "b", "c")))
    with pytest.raises(UnknownNameError, match="psnr"):
        paired_bootstrap(pairs, pairs, ["psnr"])
    with pytest.raises(UnknownNameError, match="protocol"):
        paired_bootstrap(pairs, pairs, protocol="loose")
