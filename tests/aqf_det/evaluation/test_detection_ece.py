"""D-ECE against its definition, and the metric on detections of known precision."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from mmdet.registry import METRICS
from mmengine.logging import MMLogger

from aqf_core.errors import DomainError, ShapeError, UnknownNameError
from aqf_det.evaluation import DetectionECEMetric, detection_ece

from .synthetic_boxes import CLASSES, data_sample, gaussian_samples

BOX = np.array([10.0, 10.0, 60.0, 60.0])


def random_detections(n=400, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random(n), rng.random(n) < 0.6, rng.random((n, 2))


def reference(scores, hits, features, bins, min_count):
    """The definition with one list per bin."""
    members = defaultdict(list)
    for score, hit, place in zip(scores, hits, features, strict=True):
        key = tuple(min(int(value * bins), bins - 1) for value in (score, *place))
        members[key].append((score, hit))
    kept = [rows for rows in members.values() if len(rows) >= min_count]
    n = sum(map(len, kept))
    return sum(
        len(rows) / n * abs(np.mean([hit for _, hit in rows]) - np.mean([s for s, _ in rows]))
        for rows in kept
    )


def evaluate(samples, **options):
    metric = DetectionECEMetric(**{"min_count": 1, "score_threshold": 0.0, **options})
    metric.dataset_meta = {"classes": CLASSES}
    for sample in samples:
        metric.process(None, [sample])
    return metric.evaluate(len(samples))


# ------------------------------------------------------------------------- the definition


@pytest.mark.parametrize(("dimensions", "bins", "min_count"), [(0, 20, 1), (2, 4, 1), (2, 4, 8)])
def test_it_is_the_sum_over_bins(dimensions, bins, min_count):
    scores, hits, features = random_detections()
    features = features[:, :dimensions]
    found = detection_ece(scores, hits, features, bins, min_count)
    assert found.value == pytest.approx(reference(scores, hits, features, bins, min_count))
    assert 0 < found.kept <= 1 and (found.kept == 1) == (min_count == 1)
    order = np.random.default_rng(1).permutation(len(scores))
    shuffled = detection_ece(scores[order], hits[order], features[order], bins, min_count)
    assert shuffled.value == pytest.approx(found.value)


def test_calibrated_scores_have_none_and_a_shift_is_found():
    rng = np.random.default_rng(0)
    precision = rng.uniform(0.2, 0.7, 40000)
    hits = rng.random(40000) < precision
    assert detection_ece(precision, hits).value < 0.02
    assert detection_ece(precision + 0.2, hits).value == pytest.approx(0.2, abs=0.01)


def test_a_bias_that_depends_on_the_place_is_invisible_to_the_score_alone():
    """Score 0.5 everywhere; all detections on the left are true and all on the right false."""
    x = np.linspace(0.01, 0.99, 200)
    scores, hits = np.full(200, 0.5), x < 0.5
    assert detection_ece(scores, hits).value == pytest.approx(0.0)
    assert detection_ece(scores, hits, x[:, None], 8).value == pytest.approx(0.5)


def test_extremes():
    assert detection_ece([1.0, 0.0], [True, False]).value == 0
    assert math.isnan(detection_ece([], []).value)
    few = detection_ece([0.5], [True], min_count=2)
    assert math.isnan(few.value) and few.kept == 0
    beyond = detection_ece([0.5, 0.5], [1, 0], [[-3.0], [0.01]], bins=2)
    assert beyond.value == 0  # both in the first bin
    with pytest.raises(DomainError, match=r"\[0, 1\]"):
        detection_ece([1.2], [True])
    with pytest.raises(DomainError, match="positive"):
        detection_ece([0.2], [True], bins=0)
    with pytest.raises(ShapeError, match="agree"):
        detection_ece([0.2, 0.3], [True])


# ------------------------------------------------------------------------- the metric


def test_names_of_the_results():
    metric = METRICS.build({"type": "DetectionECEMetric", "bins": {"confidence": 10}})
    assert isinstance(metric, DetectionECEMetric)
    result = evaluate(gaussian_samples(20))
    assert result["dece/n_detections"] == 60 and result["dece/precision"] == 1
    # Every detection is right, so the error is how far the scores are from 1.
    assert result["dece/confidence"] == pytest.approx(1 - result["dece/mean_score"])
    assert {"dece/position", "dece/size", "dece/all", "dece/all_kept"} <= set(result)
    only = evaluate(gaussian_samples(5), bins={"position": 4})
    assert "dece/confidence" not in only and only["dece/position"] > 0
    with pytest.raises(UnknownNameError, match="colour"):
        DetectionECEMetric(bins={"colour": 3})


def test_duplicates_wrong_classes_and_misplaced_boxes_are_false():
    boxes = [BOX, BOX + 1, BOX, BOX + 100]
    sample = data_sample("a", [BOX], [0], boxes, [0.9, 0.8, 0.7, 0.6], [0, 0, 1, 0])
    result = evaluate([sample])
    assert result["dece/precision"] == 0.25
    assert result["dece/confidence"] == pytest.approx((0.1 + 0.8 + 0.7 + 0.6) / 4)


def test_detections_of_difficult_objects_take_no_part():
    sample = data_sample("a", [BOX], [0], [BOX, BOX + 200, BOX + 202], [0.9, 0.8, 0.7], [0, 0, 0])
    sample["ignored_instances"] = {
        "bboxes": torch.tensor(np.array([BOX + 200])),
        "labels": torch.tensor([0]),
    }
    result = evaluate([sample])
    assert result["dece/n_detections"] == 1 and result["dece/precision"] == 1


def test_without_detections_everything_is_nan_with_one_warning(monkeypatch):
    messages = []
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, "warning", lambda text, *a, **k: messages.append(text))
    result = evaluate([data_sample("a", [BOX], [0], [BOX], [0.2], [0])], score_threshold=0.3)
    assert result["dece/n_detections"] == 0 and math.isnan(result["dece/confidence"])
    assert len(messages) == 1 and "no detection" in messages[0]
