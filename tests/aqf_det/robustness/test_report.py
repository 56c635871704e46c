"""The verdict on growing uncertainty, and the report, from pairs of known widths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aqf_core.errors import DomainError, LevelError
from aqf_det.evaluation import BoxPairs
from aqf_det.robustness import CLEAN, Condition, Measurement, growth_of, write_report

from ..evaluation.synthetic_boxes import gaussian_samples, pairs_of


@pytest.fixture(scope="module")
def widening(tmp_path_factory: pytest.TempPathFactory) -> list[BoxPairs]:
    """The same boxes and errors, claimed with sigma 4, 5, 6, 7."""
    folder = tmp_path_factory.mktemp("pairs")
    return [pairs_of(gaussian_samples(12, claimed=s), folder) for s in (4.0, 5.0, 6.0, 7.0)]


def measured(condition: Condition, pairs: BoxPairs, width: float = 10.0) -> Measurement:
    return Measurement(condition, {"uncertainty/mpiw_90": width, "area/mAP": 0.5}, pairs)


def test_growth_is_measured_on_the_same_objects(widening: list[BoxPairs]) -> None:
    clean, *rest = widening
    growth = growth_of(clean, list(zip((1, 3, 5), rest, strict=True)), replicates=50)
    assert growth.verdict == "grows"
    ratios = growth.ratios("mpiw_90")
    assert [item.value for item in ratios] == pytest.approx([5 / 4, 6 / 4, 7 / 4], rel=1e-5)
    # Losing the objects with the widest intervals changes a mean, but not this comparison.
    kept = np.arange(len(rest[0])) % 3 == 0
    fewer = growth_of(clean, [(1, rest[0].select(kept))], replicates=50)
    assert fewer.from_clean[0]["mpiw_90"].n_pairs == kept.sum()
    assert fewer.ratios("mpiw_90")[0].value == pytest.approx(5 / 4, rel=1e-5)


def test_verdicts(widening: list[BoxPairs]) -> None:
    four, five, six, seven = widening

    def verdict(*pairs: BoxPairs) -> str:
        return growth_of(four, list(enumerate(pairs, 1)), replicates=50).verdict

    assert verdict(five, seven, six) == "grows, not at every step"
    assert verdict(five, four) == "does not grow"
    assert growth_of(six, [(1, five), (2, four)], replicates=50).verdict == "does not grow"
    nothing = six.select(np.zeros(len(six), bool))
    lost = growth_of(four, [(1, five), (2, nothing)], replicates=50)
    assert lost.verdict == "does not grow"
    assert lost.from_clean[1] is None and np.isnan(lost.ratios("mpiw_90")[1].value)
    json.dumps(lost.to_dict())


def test_the_report_has_a_row_per_condition(widening: list[BoxPairs], tmp_path: Path) -> None:
    nothing = widening[2].select(np.zeros(len(widening[2]), bool))
    measurements = [
        measured(CLEAN, widening[0]),
        measured(Condition("fog", 1), widening[1]),
        measured(Condition("fog", 4), widening[3]),
        measured(Condition("blur", 2), nothing, float("nan")),
    ]
    growth = write_report(measurements, tmp_path / "new", "a detector", replicates=20)
    assert {kind: item.verdict for kind, item in growth.items()} == {
        "fog": "grows",
        "blur": "does not grow",
    }
    text = (tmp_path / "new" / "results.md").read_text()
    assert "a detector" in text and "- fog: uncertainty grows" in text
    numbers = json.loads((tmp_path / "new" / "results.json").read_text())
    rows = numbers["measurements"]
    assert [row["severity"] for row in rows] == [0, 1, 4, 2]
    assert rows[0]["std"] == pytest.approx(4.0) and rows[0]["mAP"] == 0.5
    assert rows[3]["mpiw_90"] is None and rows[3]["matched"] == 0
    assert (tmp_path / "new" / "robustness.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_compared_is_refused(widening: list[BoxPairs], tmp_path: Path) -> None:
    pairs = widening[0]
    empty = pairs.select(np.zeros(len(pairs), bool))
    with pytest.raises(DomainError, match="no detection on clean images"):
        write_report([measured(CLEAN, empty)], tmp_path)
    with pytest.raises(LevelError, match=r"levels=199"):
        write_report([measured(CLEAN, pairs, float("nan"))], tmp_path)
