"""tools/calibrate.py end to end: whatever loads the new checkpoint predicts calibrated boxes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.apis import inference_detector, init_detector
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope
from mmengine.runner import load_checkpoint

from aqf_core.errors import AQFError, DomainError
from aqf_det import QuantileInferencer
from aqf_det.calibration import CalibrationMismatchError
from aqf_det.calibration.held_out import HeldOutBoxes, collect_held_out
from aqf_det.calibration.report import cross_validate, image_folds
from aqf_det.calibration.run import held_out_loader, load_detector, usable_edges
from aqf_det.datasets.demo_scenes import generate_demo_dataset
from aqf_det.engine import TwoStageHook, running
from aqf_det.engine.cached_branch import save_detector

from ..models.conftest import with_statistics
from ..test_inference import small_config, write_detector

ROOT = Path(__file__).resolve().parents[3]


def tool() -> ModuleType:
    path = ROOT / "tools" / "calibrate.py"
    spec = importlib.util.spec_from_file_location("tools_calibrate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config, a checkpoint and its calibrated twin; random weights find enough by accident."""
    root = tmp_path_factory.mktemp("calibrate")
    data = generate_demo_dataset(root / "data", n_train=2, n_val=16, n_test=4, image_size=128)
    cfg = small_config()
    cfg.work_dir = str(root)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = f"{data}/"
    cfg.val_dataloader.dataset.pipeline = cfg.test_dataloader.dataset.pipeline
    cfg.model.test_cfg.update(score_thr=0.001, levels=19)
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator[-1].update(score_threshold=0.0, iou_threshold=0.05, replicates=10)
    cfg.dump(root / "config.py")
    init_default_scope("mmdet")
    detector = with_statistics(MODELS.build(cfg.model))
    with torch.no_grad():
        for parameter in detector.bbox_head.branch.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    detector.set_stage(2)
    save_detector(detector, root / "detector.pth", dict(cfg.metainfo))
    files = [str(root / "config.py"), str(root / "detector.pth")]
    tool().main([*files, "--kind", "isotonic", "--folds", "2"])
    return root


def predictions(config: Path, checkpoint: Path, **test: Any) -> list[Any]:
    """What mmdet's own API predicts for the validation pictures."""
    cfg = Config.fromfile(config)
    cfg.model.test_cfg.update(test)
    model = init_detector(cfg, str(checkpoint), device="cpu")
    pictures = sorted(str(p) for p in (config.parent / "data/JPEGImages").glob("*.jpg"))[:4]
    return [sample.pred_instances for sample in inference_detector(model, pictures)]


def test_a_calibrated_checkpoint_changes_distributions_and_no_box(run: Path) -> None:
    config = run / "config.py"
    plain = predictions(config, run / "detector.pth")
    after = predictions(config, run / "detector_calibrated.pth")
    switched_off = predictions(config, run / "detector_calibrated.pth", calibrated=False)
    assert sum(len(found) for found in plain) > 0
    for a, b, c in zip(plain, after, switched_off, strict=True):
        for field in ("bboxes", "scores", "labels"):
            assert torch.equal(a[field], b[field]) and torch.equal(a[field], c[field])
        assert torch.equal(a.bbox_quantiles, c.bbox_quantiles)
        assert torch.equal(a.bbox_std, c.bbox_std)
        assert len(a) == 0 or not torch.allclose(a.bbox_quantiles, b.bbox_quantiles, atol=0.5)
        assert bool((b.bbox_quantiles.diff(dim=1) >= 0).all())


def test_the_held_out_boxes_themselves_become_calibrated(run: Path, tmp_path: Path) -> None:
    """The metric of tools/test.py, on the images of the fit: a share u lies below quantile u."""
    cfg = running.load_config(str(run / "config.py"), str(tmp_path))
    cfg.test_dataloader.dataset.ann_file = cfg.val_dataloader.dataset.ann_file
    results = [
        running.test(cfg.copy(), str(run / name))
        for name in ("detector.pth", "detector_calibrated.pth")
    ]
    before, after = (r["uncertainty/calibration_mae"] for r in results)
    assert results[0]["uncertainty/n_pairs"] > 20
    assert after < 0.06 and after < 0.4 * before
    for key in ("pascal_voc/mAP", "uncertainty/n_pairs"):
        assert results[0][key] == results[1][key]


def test_the_inferencer_uses_it_without_being_told(run: Path) -> None:
    picture = sorted((run / "data/JPEGImages").glob("*.jpg"))[0]
    plain = QuantileInferencer(run / "config.py", run / "detector.pth", "cpu")(picture)
    calibrated = QuantileInferencer(run / "config.py", run / "detector_calibrated.pth", "cpu")
    found = calibrated(picture, conformal=0.5)
    np.testing.assert_array_equal(found.boxes, plain.boxes)
    assert not np.allclose(found.quantile(0.9), plain.quantile(0.9), atol=0.5)
    assert found.conformal_interval.shape == found.conformal_band.shape == (len(found), 2, 4)
    chosen = found[:2]
    assert chosen.conformal_outer.shape == chosen.conformal_inner.shape == (2, 4)
    low, high = found.conformal_interval.transpose(1, 0, 2)
    assert (low < high).all()
    assert plain.conformal_outer is None
    with pytest.raises(CalibrationMismatchError, match="needs a calibrated checkpoint"):
        QuantileInferencer(run / "config.py", run / "detector.pth", "cpu")(picture, conformal=0.5)


def test_held_out_base_values_are_those_of_the_prediction(run: Path) -> None:
    """z of the truth, from the distribution itself: its quantile at Phi(z) is the truth again."""
    cfg = running.load_config(str(run / "config.py"))
    detector, _ = load_detector(cfg, str(run / "detector.pth"))
    loader = held_out_loader(cfg)
    boxes = collect_held_out(detector, loader, 0.0, 0.05)
    assert boxes.base_values.shape == (len(boxes), 4) and len(boxes.image.unique()) > 4
    batch = next(iter(loader))
    detector.bbox_head.test_cfg["levels"] = 199
    found = detector.test_step(batch)
    count = 0
    for number, sample in enumerate(found):
        mine = boxes.base_values[boxes.image == number]
        quantiles = sample.pred_instances.bbox_quantiles  # (N, 199, 4)
        truths = torch.as_tensor(sample.gt_instances.bboxes)
        # Every base value belongs to one detection and one truth; find it by its level.
        levels = torch.special.ndtr(mine)
        for level in levels:
            inside = (truths[None, :, None] >= quantiles[:, None]).float().mean(2)  # (N, G, 4)
            gap = (inside - level).abs().amax(-1).min()
            assert float(gap) < 0.02
            count += 1
    assert count > 0


def test_training_from_it_drops_or_refuses_the_calibration(run: Path) -> None:
    cfg = Config.fromfile(run / "config.py")
    detector, _ = load_detector(cfg, str(run / "detector_calibrated.pth"))
    calibration = detector.bbox_head.calibration
    assert calibration.fitted
    with pytest.raises(CalibrationMismatchError, match=r"calibration\.clear\(\)"):
        detector.loss(torch.zeros(1, 3, 128, 128), [])
    said: list[str] = []
    runner = SimpleNamespace(
        model=detector,
        epoch=1,
        _resume=False,
        logger=SimpleNamespace(warning=said.append),
        train_loop=SimpleNamespace(max_epochs=2),
    )
    TwoStageHook(stage1_epochs=1).before_train(runner)
    assert not calibration.fitted and "dropped" in said[0]


def test_another_branch_starts_without_it(run: Path, tmp_path: Path) -> None:
    """A calibrated Gaussian detector of stage 1 begins the training of a flow."""
    MMLogger.get_instance("test", log_level="WARNING")
    cfg = small_config("demo_gaussian.py")
    write_detector(cfg, tmp_path / "gaussian.pth")
    gaussian = MODELS.build(cfg.model)
    load_checkpoint(gaussian, str(tmp_path / "gaussian.pth"))
    gaussian.bbox_head.calibration.store(torch.randn(50, 4))
    save_detector(gaussian, tmp_path / "calibrated.pth", {})
    again = MODELS.build(cfg.model)
    load_checkpoint(again, str(tmp_path / "calibrated.pth"))
    assert again.bbox_head.calibration.fitted
    flow = MODELS.build(small_config().model)
    load_checkpoint(flow, str(tmp_path / "calibrated.pth"))
    assert not flow.bbox_head.calibration.fitted


def test_cross_validation_judges_by_other_images() -> None:
    """On calibrated data nothing is gained; overconfidence is repaired."""
    image = torch.arange(900) // 3
    folds = image_folds(image, 5)
    assert all(len(folds[image == i].unique()) == 1 for i in range(300))
    assert set(folds.bincount().tolist()) == {180}
    for scale in (1.0, 3.0):
        boxes = HeldOutBoxes(scale * torch.randn(900, 4), torch.rand(900) * 100, image)
        result = cross_validate(boxes, edges=(50.0,), kind="isotonic", folds=5)
        assert 0.9 < float(result.after.std()) < 1.1
        assert 0.85 < float(result.in_interval.mean()) < 0.95
        assert 0.85 < float(result.in_band.mean()) < 0.98


def test_small_groups_of_sizes_are_joined() -> None:
    sizes = torch.cat(
        [torch.full((150,), 20.0), torch.full((50,), 60.0), torch.full((300,), 200.0)]
    )
    assert usable_edges(sizes, [32, 96]) == (32.0,)
    assert usable_edges(sizes, [10, 96]) == (96.0,)
    assert usable_edges(sizes, [96, 300]) == (96.0,)


def test_bad_input_ends_with_a_sentence(run: Path) -> None:
    main, config = tool().main, str(run / "config.py")
    with pytest.raises(FileNotFoundError, match=r"checkpoint absent\.pth does not exist"):
        main([config, "absent.pth"])
    options = ["--ann-file", "ImageSets/Main/test.txt", "--out", str(run / "never.pth")]
    with pytest.raises(DomainError, match="images of the test"):
        main([config, str(run / "detector.pth"), *options])
    assert not (run / "never.pth").exists()
    cfg = running.load_config(config)
    detector, _ = load_detector(cfg, str(run / "detector.pth"))
    detector.bbox_head.test_cfg["score_thr"] = 0.9999
    with pytest.raises(AQFError, match="gave 0 detections"):
        collect_held_out(detector, held_out_loader(cfg))
