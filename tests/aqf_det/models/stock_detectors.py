"""Stock mmdet detectors small enough for a test, and the same ones with a flow."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from mmdet.registry import MODELS
from mmengine.config import Config, ConfigDict
from mmengine.runner import load_checkpoint

CONFIGS = Path(__file__).parents[3] / "configs"
DENSE = ("rtmdet", "fcos", "atss", "gfl")
EVERY = (*DENSE, "frcnn", "frcnn_xywh")
CLASSES = 3


def _on_mobilenet(kind: str, head: dict[str, Any], **cfg: Any) -> dict[str, Any]:
    loss = {"type": "FocalLoss", "use_sigmoid": True}
    return {
        "type": kind,
        "data_preprocessor": {"type": "DetDataPreprocessor"},
        "backbone": {"type": "TappedMobileNetV2", "width": 0.25},
        "neck": {"type": "FPN", "in_channels": [8, 24, 1280], "out_channels": 16, "num_outs": 3},
        "bbox_head": {
            "type": f"{kind}Head",
            "num_classes": CLASSES,
            "in_channels": 16,
            "feat_channels": 16,
            "stacked_convs": 1,
            "norm_cfg": None,
            "loss_cls": loss,
            **head,
        },
        "test_cfg": {
            "nms_pre": 100,
            "score_thr": 0.0,
            "nms": {"type": "nms", "iou_threshold": 0.5},
            "max_per_img": 10,
        },
        **cfg,
    }


def _anchors() -> dict[str, Any]:
    return {
        "type": "AnchorGenerator",
        "ratios": [1.0],
        "octave_base_scale": 4,
        "scales_per_octave": 1,
        "strides": [8, 16, 32],
    }


def stock_model(name: str) -> ConfigDict:
    """The config of a small stock detector."""
    atss = {"assigner": {"type": "ATSSAssigner", "topk": 9}, "allowed_border": -1, "pos_weight": -1}
    if name == "fcos":
        ranges = ((-1, 32), (32, 64), (64, 1e8))
        model = _on_mobilenet("FCOS", {"strides": [8, 16, 32], "regress_ranges": ranges})
    elif name == "atss":
        # mmdet's own coder of ATSS, of centre and size: the flow does not go through it.
        head = {"anchor_generator": _anchors(), "loss_bbox": {"type": "GIoULoss"}}
        coder = {"type": "DeltaXYWHBBoxCoder", "target_stds": [0.1, 0.1, 0.2, 0.2]}
        model = _on_mobilenet("ATSS", {**head, "bbox_coder": coder}, train_cfg=atss)
    elif name == "gfl":
        quality = {"type": "QualityFocalLoss", "use_sigmoid": True}
        head = {"anchor_generator": _anchors(), "loss_bbox": {"type": "GIoULoss"}, "reg_max": 8}
        head = {**head, "loss_cls": quality, "loss_dfl": {"type": "DistributionFocalLoss"}}
        model = _on_mobilenet("GFL", head, train_cfg=atss)
    elif name == "rtmdet":
        cfg = Config.fromfile(CONFIGS / "_base_" / "rtmdet_tiny.py").model
        cfg.backbone.widen_factor = 0.125
        cfg.neck.update(in_channels=[32, 64, 128], out_channels=16)
        cfg.bbox_head.update(in_channels=16, feat_channels=16, num_classes=CLASSES)
        cfg.test_cfg.update(score_thr=0.0, nms_pre=100, max_per_img=10)
        return cfg
    else:
        cfg = Config.fromfile(CONFIGS / "_base_" / "frcnn.py").model
        cfg.type = "FasterRCNN"
        cfg.backbone.update(width=0.25, weights=None, norm_eval=False)
        cfg.neck.update(in_channels=[8, 24, 1280], out_channels=16)
        cfg.rpn_head.update(in_channels=16, feat_channels=16)
        cfg.roi_head.bbox_roi_extractor.out_channels = 16
        head = cfg.roi_head.bbox_head
        head.update(type="Shared2FCBBoxHead", in_channels=16, fc_out_channels=32)
        head.num_classes = CLASSES
        del head["flow"]
        if name == "frcnn_xywh":
            head.bbox_coder = {"type": "DeltaXYWHBBoxCoder", "target_stds": [0.1, 0.1, 0.2, 0.2]}
        cfg.test_cfg.rpn.update(nms_pre=50, max_per_img=20)
        cfg.test_cfg.rcnn.update(score_thr=0.0, max_per_img=10)
        del cfg.test_cfg.rcnn["levels"]
        return cfg
    return ConfigDict(model)


def flow_model(
    stock: ConfigDict, test: dict[str, Any] | None = None, **flow_head: Any
) -> ConfigDict:
    """The stock config with a flow; what the documentation tells users to write."""
    model = copy.deepcopy(stock)
    flow_head = {"flow": {"kind": "quantile"}, "min_score": 0.0, **flow_head}
    if "roi_head" in model:
        model.type = "FlowTwoStageDetector"
        model.roi_head.bbox_head.update(type="FlowBBoxHead", **flow_head)
        model.test_cfg.rcnn.update({"levels": 9, **(test or {})})
    else:
        model.update(type="FlowSingleStageDetector", flow_head=flow_head)
        model.test_cfg.update({"levels": 9, **(test or {})})
    return model


def lively(model: Any, images: torch.Tensor) -> Any:
    """Fill BatchNorm's statistics and spread the outputs, so that a random detector finds boxes."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()
        maps = model.extract_feat(images)
        if model.with_bbox and hasattr(model, "rpn_head"):
            model.rpn_head(maps)
        else:
            model.bbox_head(maps)
        for name, parameter in model.named_parameters():
            last = ("rtm_", "conv_cls", "conv_reg", "atss_", "gfl_", "fc_cls", "fc_reg", "rpn_")
            if name.endswith("weight") and any(part in name for part in last):
                parameter.normal_(std=0.1)
            if "rtm_reg" in name and name.endswith("bias"):
                parameter.fill_(1.5)  # distances in strides; without any there would be no boxes
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


def pair(name: str, folder: Path, images: torch.Tensor, **flow_head: Any) -> tuple[Any, Any]:
    """A stock detector, and one with a flow that has loaded its checkpoint."""
    config = stock_model(name)
    stock = lively(MODELS.build(copy.deepcopy(config)), images)
    path = folder / f"{name}.pth"
    torch.save({"state_dict": stock.state_dict(), "meta": {}}, path)
    flow = MODELS.build(flow_model(config, **flow_head))
    load_checkpoint(flow, str(path), map_location="cpu")
    return stock, flow.eval()
