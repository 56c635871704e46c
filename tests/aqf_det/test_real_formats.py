"""The VOC and COCO configs, shrunk but whole, on miniature data sets of those formats."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from aqf_det.engine import running

CONFIGS = Path(__file__).parents[2] / "configs"
NARROW = {
    "model.backbone.width": 0.25,
    "model.backbone.weights": None,
    "model.neck.in_channels": (8, 24, 1280),
    "model.neck.out_channels": (8, 12, 16),
    "model.bbox_head.in_channels": (8, 12, 16),
    "model.test_cfg.levels": 19,
}
XML = """<annotation><size><width>{width}</width><height>{height}</height></size>
<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>11</xmin><ymin>21</ymin>
<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object></annotation>"""
SHAPES = ((120, 200), (180, 100))  # height, width


def write_picture(path: Path, shape: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8))


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of each year; those of 2007 are the test set as well."""
    root = tmp_path_factory.mktemp("voc")
    for year, name in ((2007, "dog"), (2012, "person")):
        folder = root / f"VOCdevkit/VOC{year}"
        for i, (height, width) in enumerate(SHAPES):
            write_picture(folder / f"JPEGImages/00000{i}.jpg", (height, width))
            xml = folder / f"Annotations/00000{i}.xml"
            xml.parent.mkdir(exist_ok=True)
            box = {"right": width - 20, "bottom": height - 10}
            xml.write_text(XML.format(width=width, height=height, name=name, **box))
        for split in ("trainval", "test"):
            path = folder / f"ImageSets/Main/{split}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("000000\n000001\n")
    return root


def load(name: str, root: Path, work_dir: Path, options: dict[str, Any]) -> Config:
    """A narrow copy of a config that loads its data in this process."""
    for part in ("train", "val", "test"):
        options = {
            f"{part}_dataloader.num_workers": 0,
            f"{part}_dataloader.persistent_workers": False,
            **options,
        }
    path = str(CONFIGS / f"{name}.py")
    return running.load_config(path, str(work_dir), {**NARROW, **options}, data_root=str(root))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--data-root`` sets these for the process."""
    for name in ("AQF_DATA", "AQF_DEMO"):
        monkeypatch.setenv(name, "elsewhere")


def test_training_images_of_voc_are_mixed_and_of_three_sizes(voc: Path, tmp_path: Path) -> None:
    cfg = load("voc_qfr", voc, tmp_path, {"train_dataloader.batch_size": 4})
    init_default_scope("mmdet")
    random.seed(0)  # of mix-up, crops and sizes
    MessageHub.get_current_instance().update_info("iter", 0)
    loader = Runner.build_dataloader(cfg.train_dataloader, seed=0)
    prepare = MODELS.build(cfg.model.data_preprocessor)
    sizes, weights, labels = set(), [], set()
    for _ in range(8):
        (batch,) = loader
        ready = prepare(batch, training=True)
        sizes.add(tuple(ready["inputs"].shape[2:]))
        side = ready["inputs"].shape[-1]
        for sample in ready["data_samples"]:
            found = sample.gt_instances
            assert bool((found.bboxes >= 0).all() and (found.bboxes <= side).all())
            labels |= set(found.labels.tolist())
            weights.append(found.weights)
            # One image alone, or two whose weights add up to one.
            if len(found) == 1:
                assert float(found.weights) == 1
            else:
                assert float(found.weights.sum()) == pytest.approx(1)
    assert sizes == {(480, 480), (512, 512), (544, 544)}
    mixed = [len(w) == 2 for w in weights]
    assert 0.2 < np.mean(mixed) < 0.8
    classes = loader.dataset.metainfo["classes"]
    assert {classes[label] for label in labels} == {"dog", "person"}


@pytest.mark.slow
def test_the_recipe_runs_on_voc(voc: Path, tmp_path: Path) -> None:
    options = {
        "train_dataloader.batch_size": 4,
        "train_cfg.max_epochs": 2,
        "custom_hooks": [{"type": "TwoStageHook", "stage1_epochs": 1}],
    }
    cfg = load("voc_qfr_ar", voc, tmp_path, options)
    running.train(cfg)
    metrics = running.test(load("voc_qfr_ar", voc, tmp_path, {}), str(tmp_path / "epoch_2.pth"))
    assert {"pascal_voc/mAP", "area/mAP", "uncertainty/crps", "uncertainty/crps_dog"} <= set(
        metrics
    )


def test_coco_metric_and_uncertainty_stand_side_by_side(tmp_path: Path) -> None:
    folder = tmp_path / "coco"
    images, boxes = [], []
    for i, (height, width) in enumerate(SHAPES):
        write_picture(folder / f"val2017/{i}.jpg", (height, width))
        images.append({"id": i, "file_name": f"{i}.jpg", "width": width, "height": height})
        box = [10, 20, width - 40, height - 40]
        boxes.append({"id": i, "image_id": i, "category_id": 18, "bbox": box, "iscrowd": 0})
        boxes[-1]["area"] = box[2] * box[3]
    names = [{"id": i, "name": name} for i, name in enumerate(CocoDataset.METAINFO["classes"], 1)]
    content = {"images": images, "annotations": boxes, "categories": names, "info": {}}
    (folder / "annotations").mkdir()
    (folder / "annotations/instances_val2017.json").write_text(json.dumps(content))

    cfg = load("coco_qfr", tmp_path, tmp_path / "work", {})
    init_default_scope("mmdet")
    model = MODELS.build(cfg.model)
    model.set_stage(2)
    torch.save({"state_dict": model.state_dict(), "meta": {}}, tmp_path / "c.pth")
    metrics = running.test(cfg, str(tmp_path / "c.pth"))
    assert {"coco/bbox_mAP", "uncertainty/crps", "uncertainty/paper_crps"} <= set(metrics)
