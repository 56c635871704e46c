"""A detector small enough to train in a test, and batches for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from aqf_det.models import FlowDetector

SIZE = 96


@pytest.fixture(autouse=True)
def _scope() -> None:
    init_default_scope("mmdet")


@pytest.fixture
def build() -> Callable[..., FlowDetector]:
    """Build a tiny detector; keyword arguments go to the head, ``test`` to its test_cfg."""

    def make(test: dict[str, Any] | None = None, **head: Any) -> FlowDetector:
        torch.manual_seed(0)
        model = MODELS.build(
            {
                "type": "FlowDetector",
                "data_preprocessor": {"type": "DetDataPreprocessor"},
                "backbone": {"type": "TappedMobileNetV2", "width": 0.25},
                "neck": {
                    "type": "SeparableYOLONeck",
                    "in_channels": (8, 24, 1280),
                    "out_channels": (8, 12, 16),
                },
                "bbox_head": {
                    "type": "FlowYOLOHead",
                    "num_classes": 3,
                    "in_channels": (8, 12, 16),
                    **head,
                },
                "test_cfg": {"score_thr": 1e-4, "max_per_img": 20, "levels": 9, **(test or {})},
            }
        )
        return with_statistics(model)

    return make


def with_statistics(model: FlowDetector) -> FlowDetector:
    """Fill BatchNorm's statistics; with the initial ones random features would fade to nothing."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train().bbox_head(model.extract_feat(torch.randn(4, 3, SIZE, SIZE)))
    for norm in norms:
        norm.momentum = 0.1
    for conv in model.bbox_head.output_convs():
        torch.nn.init.normal_(conv.weight, std=0.1)
    return model


@pytest.fixture
def batch() -> tuple[torch.Tensor, list[DetDataSample]]:
    """Two images, the second without objects."""
    images = torch.randn(2, 3, SIZE, SIZE)
    boxes = torch.tensor(
        [[8.0, 10.0, 28.0, 34.0], [30.0, 20.0, 90.0, 80.0], [5.0, 50.0, 95.0, 95.0]]
    )
    return images, [make_sample(boxes, torch.tensor([0, 2, 1])), make_sample(boxes[:0])]


def make_sample(boxes: torch.Tensor, labels: torch.Tensor | None = None) -> DetDataSample:
    """A data sample of a SIZE x SIZE image."""
    sample = DetDataSample(
        metainfo={
            "img_shape": (SIZE, SIZE),
            "ori_shape": (SIZE, SIZE),
            "batch_input_shape": (SIZE, SIZE),
            "pad_shape": (SIZE, SIZE),
            "scale_factor": (1.0, 1.0),
        }
    )
    labels = torch.zeros(len(boxes), dtype=torch.long) if labels is None else labels
    sample.gt_instances = InstanceData(bboxes=boxes.clone(), labels=labels)
    return sample


@pytest.fixture
def train_steps() -> Callable[..., list[float]]:
    """Take Adam steps on one batch; returns the losses."""

    def run(model: FlowDetector, batch: Any, steps: int, lr: float = 1e-2) -> list[float]:
        model.train()
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
        history = []
        for _ in range(steps):
            loss = sum(model.loss(*batch).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(float(loss.detach()))
        return history

    return run


@pytest.fixture
def predict() -> Callable[..., list[DetDataSample]]:
    """Detections of a batch in evaluation mode."""

    def run(model: FlowDetector, batch: Any, **kwargs: Any) -> list[DetDataSample]:
        model.eval()
        with torch.no_grad():
            return model.predict(batch[0], [s.clone() for s in batch[1]], **kwargs)

    return run
