"""Stock mmdet models, built from the config files that mmdet ships, train and predict."""

from pathlib import Path
from typing import Any

import mmdet
import pytest
import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.structures import InstanceData

pytestmark = pytest.mark.slow

CONFIGS = Path(mmdet.__file__).parent / ".mim" / "configs"
STOCK = {
    "YOLOv3-MobileNetV2": "yolo/yolov3_mobilenetv2_8xb24-320-300e_coco.py",
    "SSDLite-MobileNetV2": "ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py",
    "RetinaNet-R50": "retinanet/retinanet_r50_fpn_1x_coco.py",
    "Faster R-CNN-R50-FPN": "faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py",
    "FCOS": "fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py",
    "ATSS": "atss/atss_r50_fpn_1x_coco.py",
    "GFL": "gfl/gfl_r50_fpn_1x_coco.py",
    "RTMDet-tiny": "rtmdet/rtmdet_tiny_8xb32-300e_coco.py",
    "Deformable DETR": "deformable_detr/deformable-detr_r50_16xb2-50e_coco.py",
}
SIZE = 96


def adapt(node: Any) -> None:
    """Few proposals, no weights from the network, and every box however unsure the model is."""
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in list(children):
        if key == "init_cfg" and isinstance(child, dict) and child.get("type") == "Pretrained":
            node[key] = None
        elif key == "score_thr":
            node[key] = 0.0
        elif key in ("max_per_img", "nms_pre"):
            node[key] = min(child, 100)
        elif isinstance(child, dict | list):
            adapt(child)


def sample(boxes: list[list[float]], labels: list[int]) -> DetDataSample:
    size = (SIZE, SIZE)
    keys = ("img_shape", "ori_shape", "pad_shape", "batch_input_shape")
    data = DetDataSample(metainfo={**dict.fromkeys(keys, size), "scale_factor": (1.0, 1.0)})
    data.gt_instances = InstanceData(
        bboxes=torch.tensor(boxes).reshape(-1, 4), labels=torch.tensor(labels, dtype=torch.long)
    )
    data.ignored_instances = InstanceData(
        bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
    )
    return data


def batch() -> tuple[torch.Tensor, list[DetDataSample]]:
    """Two images, one of them without any object."""
    samples = [
        sample([[10.0, 12.0, 60.0, 70.0], [50.0, 30.0, 90.0, 92.0]], [1, 17]),
        sample([], []),
    ]
    return torch.randn(2, 3, SIZE, SIZE), samples


@pytest.mark.parametrize("name", STOCK)
def test_one_loss_with_backward_and_one_prediction(name):
    torch.manual_seed(0)
    register_all_modules()
    config = Config.fromfile(CONFIGS / STOCK[name])
    adapt(config.model)
    model = MODELS.build(config.model)
    if name == "Deformable DETR":  # until `init_weights` it is whatever memory held
        torch.nn.init.normal_(model.level_embed)

    model.train()
    loss, _ = model.parse_losses(model.loss(*batch()))
    loss.backward()
    assert loss.isfinite() and loss > 0
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    trained = {n.split(".")[0] for n, gradient in gradients.items() if gradient.any()}
    assert "backbone" in trained and any("head" in part for part in trained)

    model.eval()
    with torch.no_grad():
        predictions = model.predict(*batch())
    assert len(predictions) == 2
    for prediction in predictions:
        found = prediction.pred_instances
        assert len(found) > 0
        assert found.bboxes.shape == (len(found), 4) and found.bboxes.isfinite().all()
        assert (found.bboxes[:, 2:] >= found.bboxes[:, :2]).all()
        assert ((found.scores >= 0) & (found.scores <= 1)).all()
        assert ((found.labels >= 0) & (found.labels < 80)).all()
