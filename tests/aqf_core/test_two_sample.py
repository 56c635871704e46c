"""Telling samples from data, and copies from new rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aqf_core import metrics
from aqf_core.errors import ShapeError


def test_p_values_are_uniform_at_most_for_one_distribution() -> None:
    rng = np.random.default_rng(0)
    tests = [
        metrics.classifier_two_sample_test(rng.normal(size=(60, 2)), rng.normal(size=(80, 2)))
        for _ in range(12)
    ]
    assert np.mean([t.accuracy for t in tests]) == pytest.approx(0.5, abs=0.06)
    assert sum(t.p_value < 0.05 for t in tests) <= 3


def test_trees_see_what_only_pairs_show() -> None:
    rng = np.random.default_rng(0)
    real = rng.normal(size=(600, 2))
    real[:, 1] = np.sign(real[:, 0]) * np.abs(real[:, 1])  # same marginals, other pairs
    test = metrics.classifier_two_sample_test(real, rng.normal(size=(600, 2)))
    assert test.accuracy > 0.65
    assert test.p_value < 1e-6


def test_neighbours_tell_copies_noise_and_new_rows() -> None:
    rng = np.random.default_rng(0)
    train, held, new = (rng.normal(size=(400, 5)) for _ in range(3))
    blurred = train + 0.05 * rng.normal(size=train.shape)
    far = 3 * rng.normal(size=train.shape)
    copied = metrics.nearest_neighbours(train, held, train[:100])
    assert (copied.closer, copied.ratio, copied.copies) == (1.0, 0.0, 1.0)
    assert metrics.nearest_neighbours(train, held, blurred).closer > 0.95
    fresh = metrics.nearest_neighbours(train, held, new)
    assert fresh.closer == pytest.approx(0.5, abs=0.08) and fresh.copies == 0
    assert metrics.nearest_neighbours(train, held, far).closer < 0.1
    # Held-out rows are exactly as near as themselves.
    assert metrics.nearest_neighbours(train, held, held).closer == pytest.approx(0.5)


def test_shapes_are_checked() -> None:
    two, three = torch.zeros(9, 2), torch.zeros(9, 3)
    with pytest.raises(ShapeError, match="must share d"):
        metrics.classifier_two_sample_test(two, three)
    with pytest.raises(ShapeError, match="5 folds need at least 5 rows"):
        metrics.classifier_two_sample_test(two[:3], two)
    with pytest.raises(ShapeError, match="same columns"):
        metrics.nearest_neighbours(two, two, three)
