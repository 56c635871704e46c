"""tools/analyze.py: report of one dump, comparison of two, hidden sides, bad input."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import cv2
import numpy as np
import pytest

from aqf_det.evaluation import paired_bootstrap, summarise

from .synthetic_boxes import evaluate, gaussian_samples, pairs_of
from .test_hidden_sides import LEVELS, annotations, gaussian, predictions

__all__ = ["annotations"]  # a fixture

main = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "analyze.py"))["main"]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    good = pairs_of(gaussian_samples(40), folder, "good.npz")
    narrow = pairs_of(gaussian_samples(40, claimed=2.0), folder, "narrow.npz")
    return folder, good, narrow


def test_report_of_one_dump(dumps, tmp_path, capsys):
    folder, good, _ = dumps
    out = tmp_path / "new" / "report"
    assert main([str(folder / "good.npz"), "--out", str(out), "--replicates", "100"]) == 0
    record = json.loads((out / "report.json").read_text())
    expected = summarise(good, replicates=100)
    assert record["models"]["good"]["strict"] == expected.to_dict()
    assert record["comparisons"] == []
    names = {"calibration.png", "pit.png", "per_class.png", "per_size.png"}
    assert {path.name for path in out.iterdir()} == names | {"report.json", "report.md"}
    for name in names:
        picture = cv2.imread(str(out / name))
        assert picture.shape[0] > 100 and picture.std() > 5
    text = (out / "report.md").read_text()
    assert "CRPS px" in text and "| cat" in text and "| large" in text
    printed = capsys.readouterr().out
    assert text in printed and str(out / "pit.png") in printed


def test_two_dumps_are_compared(dumps, tmp_path):
    folder, good, narrow = dumps
    paths = [str(folder / f"{name}.npz") for name in ("narrow", "good")]
    assert main([*paths, "--names", "A", "B", "--out", str(tmp_path), "--replicates", "200"]) == 0
    record = json.loads((tmp_path / "report.json").read_text())
    (comparison,) = record["comparisons"]
    assert (comparison["first"], comparison["second"]) == ("A", "B")
    expected = paired_bootstrap(narrow, good, replicates=200)["crps"]
    assert comparison["differences"]["crps"] == expected.to_dict()
    assert expected.low > 0
    assert "A against B" in (tmp_path / "report.md").read_text()


def test_hidden_sides_are_reported_where_the_truth_is_known(annotations, tmp_path):
    predictions(annotations, lambda t: t.quantile(LEVELS)).save(tmp_path / "oracle.npz")
    predictions(annotations, gaussian).save(tmp_path / "gauss.npz")
    paths = [str(tmp_path / f"{name}.npz") for name in ("gauss", "oracle")]
    options = ["--annotations", str(annotations), "--out", str(tmp_path), "--replicates", "100"]
    assert main([*paths, *options]) == 0
    record = json.loads((tmp_path / "report.json").read_text())
    hidden = {name: model["hidden_sides"] for name, model in record["models"].items()}
    assert hidden["oracle"]["quantile_error_px"]["value"] < 0.02
    assert hidden["gauss"]["crps_excess"]["low"] > 0
    assert record["comparisons"][0]["hidden_sides"]["low"] > 0
    assert (tmp_path / "hidden_sides.png").is_file()


def test_bad_input_ends_with_one_sentence(dumps, tmp_path, capsys):
    folder, _, _ = dumps
    good = str(folder / "good.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    evaluate([], dump_path=str(tmp_path / "empty.npz"))
    out = ["--out", str(tmp_path / "out")]
    cases = {
        "does not exist": [str(tmp_path / "gone.npz")],
        "no dump of box pairs": [str(tmp_path / "other.npz")],
        "no pair": [str(tmp_path / "empty.npz")],
        "Annotations": [good, "--annotations", str(tmp_path / "Annotations")],
    }
    for words, arguments in cases.items():
        assert main([*arguments, *out]) == 2
        message = capsys.readouterr().err
        assert words in message and len(message.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
    for arguments in ([good, good], [good, "--names", "a", "b"]):
        with pytest.raises(SystemExit):
            main([*arguments, *out])
