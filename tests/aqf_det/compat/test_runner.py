"""A whole life of a checkpoint: train, resume, load into another run, predict."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.apis import inference_detector, init_detector
from mmengine.config import Config
from mmengine.runner import Runner, load_checkpoint

from aqf_det.compat import UnsafeCheckpointError
from tests.aqf_det.compat.upstream_faults import MakeFolder

pytestmark = pytest.mark.slow

CONFIG = """
_base_ = 'mmdet::yolo/yolov3_mobilenetv2_8xb24-320-300e_coco.py'
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(96, 96), keep_ratio=False),
    dict(type='PackDetInputs', meta_keys=(
        'img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
dataset = dict(
    type='VOCDataset', data_root='{root}', ann_file='VOC2007/ImageSets/Main/trainval.txt',
    data_prefix=dict(sub_data_root='VOC2007/'), metainfo=dict(classes=('cat', 'dog')),
    pipeline=pipeline)
loader = dict(_delete_=True, batch_size=2, num_workers=0, persistent_workers=False)
train_dataloader = dict(
    sampler=dict(type='DefaultSampler', shuffle=True), dataset=dataset, **loader)
val_dataloader = dict(
    sampler=dict(type='DefaultSampler', shuffle=False), dataset=dict(test_mode=True, **dataset),
    **loader)
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type='VOCMetric', metric='mAP', eval_mode='area')
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=2, val_interval=1)
param_scheduler = [dict(type='MultiStepLR', milestones=[1], gamma=0.1)]
default_hooks = dict(checkpoint=dict(interval=1), logger=dict(interval=1))
model = dict(
    bbox_head=dict(num_classes=2), backbone=dict(init_cfg=None),
    test_cfg=dict(score_thr=0.0, conf_thr=0.0))
load_from = None
"""


def write_voc_tree(root: Path) -> None:
    """Four images with one bright rectangle each."""
    voc = root / "VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (voc / folder).mkdir(parents=True)
    random = np.random.default_rng(0)
    names = [f"{i:06d}" for i in range(4)]
    for name in names:
        image = random.integers(0, 60, (80, 100, 3), dtype=np.uint8)
        x1, y1 = random.integers(5, 40, 2)
        x2, y2 = x1 + 45, y1 + 35
        image[y1:y2, x1:x2] = 230
        cv2.imwrite(str(voc / "JPEGImages" / f"{name}.jpg"), image)
        kind = "cat" if int(name) % 2 else "dog"
        box = f"<xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        (voc / "Annotations" / f"{name}.xml").write_text(
            "<annotation><size><width>100</width><height>80</height><depth>3</depth></size>"
            f"<object><name>{kind}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
            "</annotation>"
        )
    (voc / "ImageSets" / "Main" / "trainval.txt").write_text("\n".join(names))


def build(config_file: Path, work_dir: Path, **changes: object) -> Runner:
    config = Config.fromfile(config_file)
    config.merge_from_dict({"work_dir": str(work_dir), **changes})
    config.experiment_name = f"{work_dir.name}_{len(changes)}"  # runs share nothing
    return Runner.from_cfg(config)


def test_train_two_epochs_resume_load_and_predict(tmp_path):
    write_voc_tree(tmp_path / "data")
    config_file = tmp_path / "config.py"
    config_file.write_text(CONFIG.replace("{root}", str(tmp_path / "data")))

    trained = build(config_file, tmp_path / "run")
    trained.train()
    assert (trained.epoch, trained.iter) == (2, 4)
    assert len(trained.message_hub.get_scalar("val/pascal_voc/mAP").data[0]) == 2
    losses = trained.message_hub.get_scalar("train/loss").data[0]
    assert len(losses) == 4 and np.isfinite(losses).all()
    last = tmp_path / "run" / "epoch_2.pth"

    resumed = build(config_file, tmp_path / "run", resume=True, **{"train_cfg.max_epochs": 3})
    resumed.train()
    assert (resumed.epoch, resumed.iter) == (3, 6)
    history = resumed.message_hub.get_scalar("train/loss").data[0]
    np.testing.assert_array_equal(history[:4], losses)  # the two epochs before were not repeated
    assert len(history) == 6
    assert resumed.param_schedulers[0]._global_step == 3
    assert resumed.optim_wrapper.optimizer.param_groups[0]["lr"] == pytest.approx(3e-4)

    other = build(config_file, tmp_path / "other", load_from=str(last))
    other.load_or_resume()
    saved = torch.load(last, weights_only=True)["state_dict"]
    for name, value in other.model.state_dict().items():
        torch.testing.assert_close(value, saved[name])

    model = init_detector(str(config_file), str(last), device="cpu")
    image = tmp_path / "data" / "VOC2007" / "JPEGImages" / "000000.jpg"
    found = inference_detector(model, str(image)).pred_instances
    assert len(found) > 0 and found.bboxes.shape == (len(found), 4)
    assert model.dataset_meta["classes"] == ("cat", "dog")

    poisoned = torch.load(last, weights_only=True)
    poisoned["meta"]["extra"] = MakeFolder(str(tmp_path / "executed"))
    bad = str(tmp_path / "poisoned.pth")
    torch.save(poisoned, bad)
    with pytest.raises(UnsafeCheckpointError, match="mkdir"):
        init_detector(str(config_file), bad, device="cpu")
    with pytest.raises(UnsafeCheckpointError, match="mkdir"):
        load_checkpoint(model, bad)
    for resume in (True, False):
        victim = build(config_file, tmp_path / f"victim_{resume}", resume=resume, load_from=bad)
        with pytest.raises(UnsafeCheckpointError, match="mkdir"):
            victim.load_or_resume()
    assert not (tmp_path / "executed").exists()
