"""PDQ against its definition, pixel by pixel, and as mmengine runs it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from mmdet.registry import METRICS
from mmengine.logging import MMLogger
from scipy.stats import norm

from aqf_core.errors import NonFiniteError
from aqf_det.evaluation import PDQMetric
from aqf_det.evaluation.detection_quality import (
    QUALITIES,
    judge_image,
    pairwise_qualities,
    pixel_probabilities,
    total_quality,
)
from aqf_det.quantile_tables import interpolated

from .synthetic_boxes import CLASSES, data_sample, gaussian_samples

LEVELS = np.arange(1, 200) / 200
Z = norm.ppf(LEVELS)
SIZE = (36, 48)
BOX = np.array([10.0, 8.0, 30.0, 24.0])


def certain(*boxes):
    return np.repeat(np.reshape(boxes, (-1, 1, 4)), len(LEVELS), axis=1)


def gaussian(box, sigma):
    return (np.asarray(box)[None, None] + Z[None, :, None] * np.asarray(sigma, float)).astype(float)


def quality(quantiles, scores, labels, truths, truth_labels, difficult=None):
    pixels = pixel_probabilities(LEVELS, quantiles, SIZE)
    truths = np.reshape(truths, (-1, 4))
    table = pairwise_qualities(
        pixels, np.array(scores), np.array(labels), truths, np.array(truth_labels, int)
    )
    record = judge_image(table, difficult)
    return {name: item.value for name, item in total_quality([record]).items()}


def evaluate(samples, **options):
    metric = PDQMetric(**{"replicates": 50, "score_threshold": 0.0, **options})
    metric.dataset_meta = {"classes": CLASSES}
    for sample in samples:
        metric.process(None, [sample])
    return metric.evaluate(len(samples))


# ------------------------------------------------------------------------- the definition


def test_a_certain_and_right_detection_has_quality_one():
    result = quality(certain(BOX), [1.0], [0], [BOX], [0])
    for name in ("pdq", "pairwise", "spatial", "label", "foreground", "background"):
        assert result[name] == pytest.approx(1.0, abs=1e-9), name
    assert (result["tp"], result["fp"], result["fn"]) == (1, 0, 0)


def test_scores_false_positives_and_misses_cost_what_the_definition_says():
    elsewhere = np.array([35.0, 2.0, 45.0, 12.0])
    assert quality(certain(BOX), [0.81], [0], [BOX], [0])["pdq"] == pytest.approx(0.9)
    two_found = quality(certain(BOX, elsewhere), [1.0, 0.6], [0, 0], [BOX], [0])
    assert two_found["pdq"] == pytest.approx(1 / 2)
    assert (two_found["tp"], two_found["fp"], two_found["fn"]) == (1, 1, 0)
    one_missed = quality(certain(BOX), [1.0], [0], [BOX, elsewhere], [0, 1])
    assert one_missed["pdq"] == pytest.approx(1 / 2)
    assert (one_missed["tp"], one_missed["fp"], one_missed["fn"]) == (1, 0, 1)
    wrong_class = quality(certain(BOX), [1.0], [1], [BOX], [0])
    assert wrong_class["pdq"] == 0 and math.isnan(wrong_class["spatial"])
    assert (wrong_class["tp"], wrong_class["fp"], wrong_class["fn"]) == (0, 1, 1)


def test_a_certain_detection_in_the_wrong_place_finds_nothing():
    result = quality(certain(BOX + 6), [1.0], [0], [BOX], [0])
    assert (result["pdq"], result["tp"], result["fp"], result["fn"]) == (0, 0, 1, 1)


def reference_spatial_quality(quantiles, truth):
    """The definition: a double loop over pixels, one logarithm each."""
    height, width = SIZE
    sides = interpolated(LEVELS, quantiles[None])

    def cdf(position):
        return sides.cdf(torch.full((1, 4), position, dtype=torch.float64))[0].tolist()

    at = [cdf(index + 0.5) for index in range(max(SIZE))]
    foreground = background = 0.0
    area = 0
    for row in range(height):
        for column in range(width):
            x, y = column + 0.5, row + 0.5
            p = at[column][0] * (1 - at[column][2]) * at[row][1] * (1 - at[row][3])
            if truth[0] <= x < truth[2] and truth[1] <= y < truth[3]:
                area += 1
                foreground += math.log(max(p, 1e-14))
            else:
                background += math.log(max(1 - p, 1e-14))
    return math.exp(foreground / area), math.exp(background / area)


@pytest.mark.parametrize(
    ("box", "sigma", "truth"),
    [
        (BOX, (1, 1, 1, 1), BOX + (0.3, -0.6, 1.2, 0.4)),
        (BOX, (0.2, 3, 0.7, 1.5), BOX + (-1, 1, 0, 0)),
        ((-3.0, -2.0, 14.0, 50.0), (2, 2, 2, 6), (-4.0, 0.0, 12.0, 40.0)),  # beyond the image
        (BOX, (4, 4, 4, 4), (18.2, 14.1, 18.9, 14.8)),  # one pixel
    ],
)
def test_qualities_are_those_of_the_double_loop_over_pixels(box, sigma, truth):
    quantiles = gaussian(np.array(box), sigma)
    pixels = pixel_probabilities(LEVELS, quantiles, SIZE)
    found = pairwise_qualities(
        pixels, np.array([0.7]), np.array([2]), np.array([truth]), np.array([2])
    )
    foreground, background = reference_spatial_quality(quantiles[0], truth)
    assert found["foreground"][0, 0] == pytest.approx(foreground, rel=1e-9)
    assert found["background"][0, 0] == pytest.approx(background, rel=1e-9)
    assert found["spatial"][0, 0] == pytest.approx(foreground * background, rel=1e-9)
    overall = math.sqrt(0.7 * foreground * background)
    assert found["overall"][0, 0] == pytest.approx(overall, rel=1e-9)


def test_pixel_probabilities_are_shares_of_sampled_boxes():
    """Skewed sides of all kinds: the share of boxes, side by side drawn, that hold a pixel."""
    rng = np.random.default_rng(0)
    quantiles = np.sort(BOX + 4 * rng.gamma(1.0, size=(1, len(LEVELS), 4)), axis=1)
    pixels = pixel_probabilities(LEVELS, quantiles, SIZE)
    draws = interpolated(LEVELS, quantiles).icdf(torch.from_numpy(rng.random((20000, 1, 4))))
    boxes = draws[:, 0].numpy()
    for row, column in [(9, 12), (15, 20), (24, 31), (11, 28)]:
        inside = (
            (boxes[:, 0] <= column + 0.5)
            & (column + 0.5 < boxes[:, 2])
            & (boxes[:, 1] <= row + 0.5)
            & (row + 0.5 < boxes[:, 3])
        )
        expected = pixels.rows[0, row] * pixels.columns[0, column]
        assert inside.mean() == pytest.approx(expected, abs=0.012)


def test_the_assignment_is_the_best_one_not_the_first_one():
    """Taking the best pair first would leave 0 for the second object."""
    overall = np.array([[0.9, 0.8], [0.7, 0.0]])
    table = dict.fromkeys(QUALITIES, overall)
    record = judge_image(table)
    assert record["overall"] == pytest.approx(1.5)
    assert (record["tp"], record["fp"], record["fn"]) == (2, 0, 0)


def test_the_order_of_detections_and_objects_does_not_matter():
    rng = np.random.default_rng(1)
    truths = np.concatenate([rng.uniform(0, 15, (5, 2)), rng.uniform(20, 34, (5, 2))], axis=1)
    truth_labels, labels = rng.integers(0, 2, 5), rng.integers(0, 2, 7)
    centre = np.concatenate([truths, truths[:2]]) + rng.normal(0, 1, (7, 4))
    quantiles = centre[:, None] + Z[None, :, None] * rng.uniform(0.3, 3, (7, 1, 4))
    scores = rng.uniform(0.1, 1, 7)
    first = quality(quantiles, scores, labels, truths, truth_labels)
    assert 0 < first["pdq"] < 1 and first["fp"] > 0
    for _ in range(3):
        d, t = rng.permutation(7), rng.permutation(5)
        other = quality(quantiles[d], scores[d], labels[d], truths[t], truth_labels[t])
        assert other == pytest.approx(first, rel=1e-9)


def test_difficult_objects_neither_help_nor_hurt():
    other = np.array([2.0, 26.0, 20.0, 34.0])
    hard = np.array([False, True])
    found = quality(certain(BOX, other), [1.0, 1.0], [0, 0], [BOX, other], [0, 0], hard)
    missed = quality(certain(BOX), [1.0], [0], [BOX, other], [0, 0], hard)
    for result in (found, missed):
        assert result["pdq"] == pytest.approx(1.0)
        assert (result["tp"], result["fp"], result["fn"]) == (1, 0, 0)


# ------------------------------------------------------------------------- the metric


def test_knowing_how_sure_one_is_beats_being_too_sure_and_too_shy():
    quality_of = {
        claimed: evaluate(gaussian_samples(15, sigma=4.0, claimed=claimed))["pdq/pdq"]
        for claimed in (0.5, 4.0, 40.0)
    }
    assert quality_of[4.0] > max(quality_of[0.5], quality_of[40.0])
    point = evaluate(gaussian_samples(15, sigma=4.0), point_boxes=True)
    assert point["pdq/pdq"] < quality_of[0.5]


def test_registered_with_intervals_and_counts():
    metric = METRICS.build({"type": "PDQMetric", "score_threshold": 0.3})
    assert isinstance(metric, PDQMetric)
    samples = gaussian_samples(20)
    result = evaluate(samples)
    assert result["pdq/pdq_low"] < result["pdq/pdq"] < result["pdq/pdq_high"]
    assert result["pdq/tp"] == 60 and result["pdq/fp"] == result["pdq/fn"] == 0
    strict = evaluate(samples, score_threshold=0.6)
    assert strict["pdq/tp"] + strict["pdq/fn"] == 60 and 0 < strict["pdq/fn"] < 60


def test_point_boxes_need_no_distribution():
    sample = data_sample("a", [BOX], [0], [BOX], [1.0], [0], no_levels=True)
    assert evaluate([sample], point_boxes=True)["pdq/pdq"] == pytest.approx(1.0)


def test_empty_images(monkeypatch):
    messages = []
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, "warning", lambda text, *a, **k: messages.append(text))
    nothing = data_sample("a", [], [], [], [], [], np.zeros((0, 199, 4)))
    assert math.isnan(evaluate([nothing])["pdq/pdq"])
    assert len(messages) == 1 and "no ground truth" in messages[0]
    missed = data_sample("a", [BOX], [0], [], [], [], no_levels=True)
    result = evaluate([nothing, missed])
    assert result["pdq/pdq"] == 0 and result["pdq/fn"] == 1
    false = data_sample("a", [], [], [BOX], [0.9], [0], certain(BOX))
    assert evaluate([false])["pdq/fp"] == 1


def test_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match="score_threshold"):
        PDQMetric(score_threshold=1.5)
    sample = data_sample("a", [BOX], [0], [BOX], [0.9], [0])
    with pytest.raises(ValueError, match=r"PDQMetric needs pred_instances\.bbox_quantiles"):
        evaluate([sample])
    sample = data_sample("a", [BOX], [0], [BOX], [0.9], [0], certain(BOX))
    with pytest.raises(ValueError, match="ori_shape"):
        evaluate([{key: value for key, value in sample.items() if key != "ori_shape"}])
    sample["pred_instances"]["bbox_quantiles"][0, 5] = float("nan")
    with pytest.raises(NonFiniteError):
        evaluate([sample])
