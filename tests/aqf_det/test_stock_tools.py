"""Flows beside stock detectors through the tools: train, test, calibrate, infer, draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.registry import init_default_scope

from aqf_det import QuantileInferencer
from aqf_det.datasets.demo_scenes import generate_demo_dataset
from aqf_det.engine import running

from .models.stock_detectors import lively, stock_model
from .test_tools import tool, weights

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SIZE = 96
#: mmdet's own way to bring images to size, and this package's.
RESIZE = {
    "rtmdet": [
        {"type": "Resize", "scale": (SIZE, SIZE), "keep_ratio": True},
        {"type": "Pad", "size": (SIZE, SIZE), "pad_val": {"img": (114, 114, 114)}},
    ],
    "frcnn": [{"type": "Letterbox", "size": SIZE}],
}
SHIPPED = {"rtmdet": "rtmdet_tiny_qfr", "frcnn": "voc_frcnn_qfr"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "demo"
    return generate_demo_dataset(root, n_train=6, n_val=8, n_test=4, image_size=128)


def small_config(name: str, data: Path) -> Config:
    """A shipped config with a smaller network, on the demo scenes."""
    cfg = Config.fromfile(ROOT / "configs" / f"{SHIPPED[name]}.py")
    small = stock_model(name)
    if name == "rtmdet":
        for part in ("backbone", "neck", "bbox_head", "test_cfg"):
            cfg.model[part].update(small[part])
        cfg.model.flow_head.update(min_score=0.0, min_iou=0.01)
        cfg.model.test_cfg.levels = 19
        epochs = 1
    else:
        for part in ("backbone", "neck", "rpn_head"):
            cfg.model[part].update(small[part])
        cfg.model.roi_head.bbox_roi_extractor.out_channels = 16
        cfg.model.roi_head.bbox_head.update(
            in_channels=16, fc_out_channels=32, num_classes=3, min_score=0.0, min_iou=0.01
        )
        cfg.model.test_cfg.rpn.update(small.test_cfg.rpn)
        cfg.model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=10, levels=19)
        epochs = 2
        cfg.custom_hooks[0].stage1_epochs = 1
    demo = Config.fromfile(ROOT / "configs" / "_base_" / "demo.py")
    for part in ("train", "val", "test"):
        loader = demo[f"{part}_dataloader"]
        load, annotate, pack = (
            {"type": "LoadCheckedImage"},
            {"type": "LoadAnnotations", "with_bbox": True},
            {"type": "PackWeightedDetInputs" if name == "frcnn" else "PackDetInputs"},
        )
        steps = [annotate, *RESIZE[name]] if part == "train" else [*RESIZE[name], annotate]
        loader.dataset.update(data_root=f"{data}/", pipeline=[load, *steps, pack])
        loader.batch_size = 3
        cfg[f"{part}_dataloader"] = loader
    metric = {"type": "BoxUncertaintyMetric", "replicates": 10}
    metric.update(iou_threshold=0.05, score_threshold=0.0)
    cfg.val_evaluator = [{"type": "VOCMetric", "metric": "mAP", "eval_mode": "area"}, metric]
    cfg.test_evaluator = cfg.val_evaluator
    cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs)
    cfg.param_scheduler = []
    cfg.default_hooks.visualization.update(draw=True, interval=1)
    cfg.default_hooks.checkpoint.max_keep_ckpts = 9
    return cfg


@pytest.fixture(scope="module", params=["rtmdet", "frcnn"])
def run(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """Which detector, its work dir, and the checkpoint with the trained flow."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    cfg = small_config(name, data)
    init_default_scope("mmdet")
    torch.manual_seed(0)
    options: list[str] = []
    if name == "rtmdet":
        stock = lively(MODELS.build(stock_model(name)), torch.randn(4, 3, SIZE, SIZE))
        torch.save({"state_dict": stock.state_dict()}, folder / "stock.pth")
        options = ["--cfg-options", f"load_from={folder / 'stock.pth'}"]
    cfg.dump(folder / "config.py")
    tool("train").main([str(folder / "config.py"), "--work-dir", str(folder), *options])
    return name, folder, folder / f"epoch_{cfg.train_cfg.max_epochs}.pth"


def test_training_leaves_the_stock_detector_as_it_was(run: tuple[str, Path, Path]) -> None:
    name, folder, checkpoint = run
    before = weights(folder / ("stock.pth" if name == "rtmdet" else "stage1.pth"))
    after = weights(checkpoint)
    ours = {n for n in after if ".branch." in n or n.endswith((".stage", ".signature"))}
    assert set(after) - ours == set(before) - ours and len(before) > 100
    assert all(torch.equal(before[n], after[n]) for n in set(after) - ours)
    assert [int(after[n]) for n in ours if n.endswith(".stage")] == [2]
    fresh = MODELS.build(Config.fromfile(folder / "config.py").model).state_dict()
    last = [n for n in ours if "conditioner.layers" in n or n.endswith("conditioner.bias")]
    assert any(not torch.equal(after[n], fresh[n]) for n in last)
    assert list(folder.rglob("vis_image/*.png"))


def test_tools_test_and_calibrate(run: tuple[str, Path, Path], tmp_path: Path) -> None:
    name, folder, checkpoint = run
    config, dump = str(folder / "config.py"), tmp_path / "pairs.npz"
    results = running.test(running.load_config(config, str(tmp_path)), str(checkpoint), str(dump))
    assert results["uncertainty/n_pairs"] > 0 and np.isfinite(results["uncertainty/crps"])
    assert dump.is_file()
    out = tmp_path / "calibrated.pth"
    tool("calibrate").main([config, str(checkpoint), "--out", str(out), "--kind", "isotonic"])
    again = running.test(running.load_config(config, str(tmp_path)), str(out))
    assert again["pascal_voc/mAP"] == results["pascal_voc/mAP"]
    assert again["uncertainty/n_pairs"] == results["uncertainty/n_pairs"]
    assert again["uncertainty/crps"] != results["uncertainty/crps"]


def test_the_inferencer_reads_pictures(
    run: tuple[str, Path, Path], data: Path, tmp_path: Path
) -> None:
    _, folder, checkpoint = run
    inferencer = QuantileInferencer(folder / "config.py", checkpoint)
    picture = min((data / "JPEGImages").glob("*.jpg"))
    result: Any = inferencer(picture, levels=[0.05, 0.5, 0.95], score_threshold=0.0)
    assert len(result) > 0 and result.quantiles.shape == (len(result), 3, 4)
    assert (np.diff(result.quantiles, axis=1) >= 0).all()
    # Medians lie near the point boxes, in pixels of the picture and not of the network's input.
    size = np.tile(result.boxes[:, 2:] - result.boxes[:, :2], 2)
    assert (np.abs(result.quantiles[:, 1] - result.boxes) < 0.5 * size + 3).all()
    assert result.boxes.max() > SIZE
    result.save(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert len(inferencer(picture, score_threshold=0.9999)) == 0


def test_a_flow_needs_a_detector(data: Path, tmp_path: Path) -> None:
    cfg = small_config("rtmdet", data)
    cfg.work_dir, cfg.load_from = str(tmp_path), None
    with pytest.raises(ValueError, match="set load_from=CHECKPOINT"):
        running.train(cfg)
