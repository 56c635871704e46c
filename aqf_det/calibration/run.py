"""What ``tools/calibrate.py`` does once its arguments are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner, load_checkpoint
from torch import Tensor

from aqf_core.errors import DomainError

from ..engine.cached_branch import save_detector
from ..engine.running import check_checkpoint_path
from .held_out import collect_held_out
from .report import CrossValidation, cross_validate

#: A group of sizes with fewer boxes is joined with its neighbour.
MIN_GROUP = 100


def calibrate(
    cfg: Config,
    checkpoint: str,
    out: str | Path,
    ann_file: str | None = None,
    kind: str = "auto",
    edges: Sequence[float] = (),
    folds: int = 5,
    report: Callable[[float], None] | None = None,
) -> tuple[CrossValidation, tuple[float, ...]]:
    """Fit a calibration on the config's validation images and write a calibrated checkpoint.

    Args:
        cfg: The config; its ``val_dataloader`` reads the held-out images.
        checkpoint: Weights written by training.
        out: The new checkpoint.
        ann_file: Another split (or annotation file) of the validation data set.
        kind: See :meth:`~aqf_det.calibration.BoxCalibration.store`.
        edges: Sizes, sqrt(area) in pixels of the original image, that separate groups with maps of
            their own.
        folds: Parts of the cross-validation that is returned.
        report: Called with the finished share.

    Returns:
        The calibration of boxes by other images, and the edges that were used: those that leave
        enough boxes in every group.
    """
    check_checkpoint_path(checkpoint)
    loader = held_out_loader(cfg, ann_file)
    detector, meta = load_detector(cfg, checkpoint)
    boxes = collect_held_out(detector, loader, *pair_thresholds(cfg), report=report)
    used = usable_edges(boxes.sizes, edges)
    result = cross_validate(boxes, used, kind, folds)
    head = detector.flow_head
    head.calibration.store(boxes.base_values, boxes.sizes, used, kind, head.options.settings)
    save_detector(detector.cpu(), Path(out), meta.get("dataset_meta") or loader.dataset.metainfo)
    return result, used


def pair_thresholds(cfg: Config) -> tuple[float, float]:
    """Least score and overlap of the pairs that the config's ``BoxUncertaintyMetric`` judges."""
    metrics = cfg.get("val_evaluator") or []
    for metric in [metrics] if isinstance(metrics, dict) else metrics:
        if metric.get("type") == "BoxUncertaintyMetric":
            return metric.get("score_threshold", 0.1), metric.get("iou_threshold", 0.5)
    return 0.1, 0.5


def held_out_config(cfg: Config, ann_file: str | None = None) -> Any:
    """Config of the data loader of held-out images; refuses the images of the test."""
    loader = copy.deepcopy(cfg.val_dataloader)
    if ann_file is not None:
        loader.dataset.ann_file = ann_file
    same = [loader.dataset.get(key) == cfg.test_dataloader.dataset.get(key) for key in _IMAGES]
    if all(same):
        raise DomainError(
            f"val_dataloader reads the images of the test ({loader.dataset.get('ann_file')}), on "
            "which a calibration must not be fitted; name held-out images with --ann-file."
        )
    return loader


def held_out_loader(cfg: Config, ann_file: str | None = None) -> Any:
    """The data loader of held-out images; refuses the images of the test."""
    return Runner.build_dataloader(held_out_config(cfg, ann_file), seed=0)


#: What tells data sets apart.
_IMAGES = ("data_root", "ann_file", "data_prefix")


def load_detector(cfg: Config, checkpoint: str) -> tuple[Any, dict[str, Any]]:
    """The config's detector with the weights of a checkpoint, and the checkpoint's metainfo."""
    init_default_scope(cfg.get("default_scope", "mmdet"))
    # Building a model fetches no pretrained weights; only training does.
    detector = MODELS.build(cfg.model)
    content = load_checkpoint(detector, checkpoint, map_location="cpu")
    detector.require_trained_branch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return detector.to(device), content.get("meta", {})


def usable_edges(
    sizes: Tensor, edges: Sequence[float], at_least: int = MIN_GROUP
) -> tuple[float, ...]:
    """The edges (ascending) that leave ``at_least`` boxes in every group.

    Example:
        >>> sizes = torch.cat([torch.full((5,), 20.0), torch.linspace(40, 200, 500)])
        >>> usable_edges(sizes, [32, 96])
        (96.0,)
    """
    kept: list[float] = []
    for edge in sorted(float(e) for e in edges):
        low = kept[-1] if kept else 0.0
        here = int(((sizes > low) & (sizes <= edge)).sum())
        if here >= at_least and int((sizes > edge).sum()) >= at_least:
            kept.append(edge)
    return tuple(kept)
