"""Predictions of hidden sides against the truth the demo annotations store."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from scipy.stats import norm

from aqf_det.datasets import read_hidden_sides
from aqf_det.datasets.demo_scenes import CLASSES, generate_demo_dataset
from aqf_det.evaluation import BoxPairs, hidden_sides, paired_hidden_crps
from aqf_det.evaluation.box_uncertainty_metric import DEFAULT_LEVELS, collect_pairs

LEVELS = np.array(DEFAULT_LEVELS)


@pytest.fixture(scope="module")
def annotations(tmp_path_factory):
    root = generate_demo_dataset(tmp_path_factory.mktemp("demo") / "scenes", 0, 0, 80)
    return root / "Annotations"


def predictions(annotations, hidden_quantiles) -> BoxPairs:
    """A detector with sharp visible sides and given quantiles on hidden ones."""
    records = []
    for path in sorted(annotations.iterdir()):
        boxes, tables = [], []
        for box, truth in read_hidden_sides(path):
            table = box[None] + 0.2 * norm.ppf(LEVELS)[:, None]
            if truth is not None:
                table[:, truth.coordinate] = hidden_quantiles(truth)
            boxes.append(box)
            tables.append(table)
        n = len(boxes)
        names = [item.findtext("name") for item in ET.parse(path).getroot().findall("object")]
        records.append(
            {
                "image_id": path.stem,
                "levels": LEVELS,
                "truth_counts": np.array([names.count(name) for name in CLASSES]),
                "energy_source": "independent",
                "label": np.array([CLASSES.index(name) for name in names]),
                "truth_index": np.arange(n),
                "score": np.ones(n),
                "iou": np.ones(n),
                "strict": np.ones(n, bool),
                "paper": np.ones(n, bool),
                "truth": np.array(boxes),
                "box": np.array(boxes),
                "quantiles": np.array(tables),
                "std": np.ones((n, 4)),
                "energy": np.ones(n),
            }
        )
    return collect_pairs(records, CLASSES)


def gaussian(truth):
    quantiles = truth.quantile(LEVELS)
    return quantiles.mean() + quantiles.std() * norm.ppf(LEVELS)


@pytest.fixture(scope="module")
def oracle(annotations):
    return predictions(annotations, lambda truth: truth.quantile(LEVELS))


@pytest.fixture(scope="module")
def normal(annotations):
    return predictions(annotations, gaussian)


def test_the_truth_itself_has_no_error(oracle, annotations):
    sides = hidden_sides(oracle, annotations)
    summary = sides.summary(replicates=50)
    assert len(sides) > 60 and len(set(sides.coordinate)) == 4
    assert summary["quantile_error_px"].value < 0.02
    assert summary["crps_excess"].value == pytest.approx(0, abs=1e-3)
    assert summary["crps_visible"].value < 0.2 < summary["crps_hidden"].value


def test_a_gaussian_of_true_mean_and_spread_is_clearly_worse(oracle, normal, annotations):
    summary = hidden_sides(normal, annotations).summary(replicates=200)
    assert summary["crps_excess"].value > 0.05
    assert summary["quantile_error_share"].value > 0.2
    change = paired_hidden_crps(normal, oracle, annotations, replicates=300)
    assert change.low > 0 and change.metric == "crps_hidden"


def test_missing_annotations(oracle, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        hidden_sides(oracle, tmp_path / "nowhere")
