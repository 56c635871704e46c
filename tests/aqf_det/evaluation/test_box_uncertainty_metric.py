"""The metric as mmengine runs it: matching, dump, empty results, several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.registry import METRICS
from mmengine.logging import MMLogger

from aqf_core.errors import LevelError, NonFiniteError, UnknownNameError
from aqf_det.evaluation import BoxPairs, BoxUncertaintyMetric, WrongDumpError, summarise

from .synthetic_boxes import CLASSES, Z, data_sample, evaluate, gaussian_samples

BOX = np.array([10.0, 10.0, 60.0, 60.0])


def one_image(box=BOX, label=0, score=0.9, **options):
    box = np.asarray(box, float)
    return data_sample(
        "a", [BOX], [0], [box], [score], [label], box[None, None] + Z[None, :, None], **options
    )


@pytest.fixture
def warnings_logged(monkeypatch):
    messages = []
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, "warning", lambda text, *a, **k: messages.append(text))
    return messages


def test_registered_and_configured():
    metric = METRICS.build({"type": "BoxUncertaintyMetric", "protocols": "strict"})
    assert isinstance(metric, BoxUncertaintyMetric) and metric.protocols == ["strict"]
    with pytest.raises(UnknownNameError, match="loose"):
        BoxUncertaintyMetric(protocols=["loose"])
    with pytest.raises(ValueError, match="npz"):
        BoxUncertaintyMetric(dump_path="pairs.pkl")


def test_crps_by_hand():
    """A point mass 3 px right of the truth has CRPS 3 on the x sides and 0 on the y sides."""
    moved = BOX + (3, 0, 3, 0)
    sample = data_sample("a", [BOX], [0], [moved], [0.9], [0], np.tile(moved, (1, 199, 1)))
    result = evaluate([sample])
    assert result["uncertainty/crps"] == pytest.approx(1.5, abs=0.02)
    assert result["uncertainty/picp_95"] == 0.5
    assert result["uncertainty/mpiw_95"] == pytest.approx(0, abs=0.03)
    assert result["uncertainty/n_pairs"] == 1


def test_sizes_and_protocols():
    small, large = gaussian_samples(20, scale=0.3, sigma=1.0), gaussian_samples(20)
    for index, sample in enumerate(large):
        sample["img_id"] = f"large{index}"
    result = evaluate(small + large)
    assert result["uncertainty/crps_medium"] < result["uncertainty/crps_large"]
    for name in ("crps", "calibration_mae", "picp_90", "energy", "nll"):
        assert np.isfinite(result[f"uncertainty/{name}"])
        assert np.isfinite(result[f"uncertainty/paper_{name}"])
    assert "uncertainty/crps_cat" not in result
    by_class = evaluate(small + large, classwise=True)
    per_class = [by_class[f"uncertainty/paper_crps_{name}"] for name in CLASSES]
    assert np.mean(per_class) == pytest.approx(by_class["uncertainty/paper_crps"])
    low, high = result["uncertainty/crps_low"], result["uncertainty/crps_high"]
    assert low < result["uncertainty/crps"] < high


def test_paper_protocol_averages_over_classes(tmp_path):
    """Two classes with 1 and 9 pairs: the paper weighs them equally, strict by pairs."""
    samples = []
    for index in range(10):
        label = int(index == 0)
        shift = 8.0 if label else 2.0
        moved = BOX + shift
        samples.append(
            data_sample(
                str(index), [BOX], [label], [moved], [0.9], [label], np.tile(moved, (1, 199, 1))
            )
        )
    result = evaluate(samples)
    assert result["uncertainty/crps"] == pytest.approx(2.6, rel=0.01)
    assert result["uncertainty/paper_crps"] == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize(
    "sample",
    [
        data_sample("a", [BOX], [0], [], [], [], np.zeros((0, 199, 4))),
        data_sample("a", [BOX], [0], [], [], [], no_levels=True),
        data_sample("a", [], [], [], [], [], np.zeros((0, 199, 4))),
        one_image(BOX + 200),
        one_image(label=1),
        one_image(score=0.05),
    ],
    ids=["no detection", "no levels", "empty image", "elsewhere", "wrong class", "low score"],
)
def test_without_pairs_everything_is_nan_with_one_warning(sample, warnings_logged, tmp_path):
    result = evaluate([sample, {**sample, "img_id": "b"}], dump_path=str(tmp_path / "p.npz"))
    assert result["uncertainty/n_pairs"] == result["uncertainty/paper_n_pairs"] == 0
    assert all(np.isnan(v) for k, v in result.items() if not k.endswith("n_pairs"))
    assert len(warnings_logged) == 1 and "no detection" in warnings_logged[0]
    assert len(BoxPairs.load(tmp_path / "p.npz")) == 0


def test_models_without_distributions_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="bbox_quantiles"):
        evaluate([data_sample("a", [BOX], [0], [BOX], [0.9], [0])])
    with pytest.raises(ValueError, match="quantile_levels"):
        evaluate([one_image(no_levels=True)])
    sample = one_image()
    sample["quantile_levels"] = (0.5, 1.2)
    with pytest.raises(LevelError, match=r"1\.2"):
        evaluate([sample])
    sample["quantile_levels"] = (0.4, 0.5)
    with pytest.raises(ValueError, match="199 levels"):
        evaluate([sample])
    sample = one_image()
    sample["pred_instances"]["bbox_quantiles"][0, 5] = float("nan")
    with pytest.raises(NonFiniteError):
        evaluate([sample])


def test_truths_in_another_frame_are_noticed(warnings_logged):
    sample = one_image()
    sample["ori_shape"] = (40, 40)
    evaluate([sample, {**sample, "img_id": "b"}])
    assert len(warnings_logged) == 1 and "after resizing" in warnings_logged[0]


def test_joint_samples_are_used_for_the_energy_score(tmp_path):
    sample = one_image(bbox_samples=torch.from_numpy(np.tile(BOX, (1, 10, 1)) + 3.0))
    path = tmp_path / "p.npz"
    result = evaluate([sample], dump_path=str(path))
    assert result["uncertainty/energy"] == pytest.approx(6.0)  # |(3, 3, 3, 3)|, no spread
    assert BoxPairs.load(path).energy_source == "samples"


def test_dump_gives_the_same_tables(tmp_path):
    path = tmp_path / "deep" / "pairs.npz"
    result = evaluate(gaussian_samples(20), dump_path=str(path))
    assert [item.name for item in path.parent.iterdir()] == ["pairs.npz"]
    pairs = BoxPairs.load(path)
    summary = summarise(pairs, replicates=200)
    for name, estimate in summary.overall.metrics.items():
        assert estimate.value == pytest.approx(result[f"uncertainty/{name}"], rel=1e-9)
    assert pairs.classes == CLASSES and len(pairs.image_ids) == 20
    assert pairs.truth_counts.sum() == 60
    json.dumps(summary.to_dict())


def test_wrong_dumps(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.npz"):
        BoxPairs.load(tmp_path / "gone.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "pickle.npz").write_bytes(b"\x80\x04]\x94.")
    for name in ("other.npz", "text.npz", "pickle.npz"):
        with pytest.raises(WrongDumpError, match="dump_path"):
            BoxPairs.load(tmp_path / name)


RANK_SCRIPT = """
import json, sys
import torch.distributed as dist
from aqf_det.evaluation import BoxUncertaintyMetric
from synthetic_boxes import CLASSES, gaussian_samples

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
samples = gaussian_samples(9)
mine = [samples[min(i, 8)] for i in range(rank, 10, 2)]  # the sampler repeats one image
metric = BoxUncertaintyMetric(replicates=50, collect_device="cpu")
metric.dataset_meta = {"classes": CLASSES}
for sample in mine:
    metric.process(None, [sample])
print(json.dumps(metric.evaluate(9)))
"""


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(tmp_path):
    here = Path(__file__).parent
    path = f"import sys; sys.path[:0] = [{str(here)!r}, {str(here.parents[2])!r}]\n"
    script = path + "import torch; torch.set_num_threads(1)\n" + RANK_SCRIPT
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in ranks]
    results = [json.loads(text.strip().splitlines()[-1]) for text in outputs]
    single = evaluate(gaussian_samples(9), replicates=50)
    assert results[0] == results[1]
    assert results[0].keys() == single.keys()
    for name, value in single.items():
        assert results[0][name] == pytest.approx(value, rel=1e-12, nan_ok=True), name
