"""Which detection meets which ground truth, on cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from aqf_det.evaluation import match_detections, pairwise_iou

SQUARE = np.array([0.0, 0.0, 10.0, 10.0])


def shifted(dx, dy=0.0):
    """A 10 x 10 box; its IoU with SQUARE is (10 - dx) / (10 + dx) for dy = 0."""
    return SQUARE + (dx, dy, dx, dy)


def pairs(boxes, scores, labels, truths, truth_labels, difficult=None, **options):
    found = match_detections(
        np.array(boxes), scores, labels, np.array(truths), truth_labels, difficult, **options
    )
    return [
        (int(d), int(t), bool(s), bool(p))
        for d, t, s, p in zip(found.detection, found.truth, found.strict, found.paper, strict=True)
    ]


def test_iou_by_hand():
    iou = pairwise_iou(np.stack([SQUARE, shifted(5), shifted(20)]), SQUARE[None])
    np.testing.assert_allclose(iou[:, 0], [1, 50 / 150, 0])
    point = np.array([[3.0, 3.0, 3.0, 3.0]])
    assert pairwise_iou(point, point)[0, 0] == 0


def test_best_score_claims_and_duplicates_count_only_for_the_paper():
    # Detection 1 has the higher score and claims the truth although 0 overlaps more.
    boxes = [shifted(0), shifted(2)]
    assert pairs(boxes, [0.5, 0.9], [0, 0], [SQUARE], [0]) == [
        (1, 0, True, True),
        (0, 0, False, True),
    ]


def test_a_detection_takes_its_best_truth_even_when_another_is_free():
    truths = [shifted(0), shifted(3)]
    boxes = [shifted(0), shifted(1)]  # both overlap truth 0 most
    assert pairs(boxes, [0.9, 0.8], [0, 0], truths, [0, 0]) == [
        (0, 0, True, True),
        (1, 0, False, True),
    ]


def test_iou_of_exactly_one_half_is_strict_only():
    half = np.array([0.0, 0.0, 10.0, 5.0])
    assert pairs([half], [0.9], [0], [SQUARE], [0]) == [(0, 0, True, False)]
    below = np.array([0.0, 0.0, 10.0, 4.99])
    assert pairs([below], [0.9], [0], [SQUARE], [0]) == []


def test_class_score_and_difficult_truths():
    assert pairs([SQUARE], [0.9], [1], [SQUARE], [0]) == []
    assert pairs([SQUARE], [0.09], [0], [SQUARE], [0]) == []
    assert pairs([SQUARE], [0.1], [0], [SQUARE], [0]) == [(0, 0, True, True)]
    # A difficult truth absorbs the detection it overlaps most instead of passing it on.
    truths = [SQUARE, shifted(1)]
    assert pairs([SQUARE], [0.9], [0], truths, [0, 0], [True, False]) == []
    assert pairs([shifted(1)], [0.9], [0], truths, [0, 0], [True, False]) == [(0, 1, True, True)]


def test_equal_scores_keep_the_given_order_and_classes_are_separate():
    boxes = [shifted(0), shifted(0), shifted(0)]
    found = pairs(boxes, [0.5, 0.5, 0.9], [1, 1, 0], [SQUARE, SQUARE], [0, 1])
    assert found == [(2, 0, True, True), (0, 1, True, True), (1, 1, False, True)]


@pytest.mark.parametrize("n, m", [(0, 0), (3, 0), (0, 2)])
def test_nothing_to_match(n, m):
    boxes, truths = np.tile(SQUARE, (n, 1)), np.tile(SQUARE, (m, 1))
    found = match_detections(boxes, np.ones(n), np.zeros(n, int), truths, np.zeros(m, int))
    assert len(found.detection) == 0


def test_strict_never_judges_a_truth_twice():
    rng = np.random.default_rng(0)
    for _ in range(50):
        truths = rng.uniform(0, 60, (4, 2))
        truths = np.concatenate([truths, truths + rng.uniform(20, 40, (4, 2))], 1)
        boxes = truths[rng.integers(0, 4, 12)] + rng.normal(0, 3, (12, 4))
        labels, truth_labels = rng.integers(0, 2, 12), rng.integers(0, 2, 4)
        found = match_detections(boxes, rng.random(12), labels, truths, truth_labels)
        strict = found.truth[found.strict]
        assert len(set(strict)) == len(strict)
        assert (labels[found.detection] == truth_labels[found.truth]).all()
        assert (found.iou >= 0.5).all()
