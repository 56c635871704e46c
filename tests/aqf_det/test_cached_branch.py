"""Training branches on cached features is stage 2 itself, only faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from aqf_det.engine.cached_branch import CellCache, collect_cells, save_detector, train_branch
from aqf_det.models import FlowDetector
from aqf_det.models.coder import make_grid

Build = Callable[..., FlowDetector]


@pytest.fixture
def build() -> Build:
    def make(**flow: Any) -> FlowDetector:
        init_default_scope("mmdet")
        torch.manual_seed(0)
        head = {"type": "FlowYOLOHead", "num_classes": 2, "in_channels": (8, 8, 8)}
        model = MODELS.build(
            {
                "type": "FlowDetector",
                "data_preprocessor": {"type": "DetDataPreprocessor"},
                "backbone": {"type": "TappedMobileNetV2", "width": 0.25},
                "neck": {
                    "type": "SeparableYOLONeck",
                    "in_channels": (8, 24, 1280),
                    "out_channels": (8, 8, 8),
                },
                "bbox_head": {**head, "flow": {"kind": "quantile", **flow}},
            }
        )
        return model

    return make


def batches(sizes: list[int]) -> list[dict[str, Any]]:
    """One batch of two images per size; objects of every level, one image without any."""
    result = []
    for seed, size in enumerate(sizes):
        generator = torch.Generator().manual_seed(seed)
        full = torch.tensor([[9.0, 8.0, 25.0, 30.0], [20.0, 24.0, 80.0, 70.0], [1.0, 2, 95, 94]])
        samples = []
        for count in (3, 0):
            sample = DetDataSample(metainfo={"img_shape": (size, size)})
            sample.gt_instances = InstanceData(
                bboxes=full[:count] + seed, labels=torch.tensor([0, 1, 0])[:count]
            )
            samples.append(sample)
        images = [torch.randint(0, 256, (3, size, size), generator=generator) for _ in samples]
        result.append({"inputs": images, "data_samples": samples})
    return result


def test_cached_and_direct_loss_agree(build: Build) -> None:
    model = build(levels=16)
    model.set_stage(2)
    model.eval()
    data = batches([96, 96])
    cells = collect_cells(model, data)
    assert len(cells) == 6
    grid = make_grid(cells.shapes, model.bbox_head.strides, model.bbox_head.slots)
    direct = []
    for batch in data:
        ready = model.data_preprocessor(batch, True)
        torch.manual_seed(5)
        direct.append(model.loss(ready["inputs"], ready["data_samples"])["loss_flow"])
    for i, expected in enumerate(direct):
        features, objects = cells.batch(torch.arange(3 * i, 3 * i + 3), grid)
        torch.manual_seed(5)
        loss = model.bbox_head.flow_loss_at(features, grid, objects)["loss_flow"]
        torch.testing.assert_close(loss, expected)


def test_rows_may_be_chosen_in_any_order(build: Build) -> None:
    model = build()
    cells = collect_cells(model, batches([96, 96]))
    grid = make_grid(cells.shapes, model.bbox_head.strides, model.bbox_head.slots)
    chosen = torch.tensor([5, 0, 2, 0])
    features, objects = cells.batch(chosen, grid)
    assert torch.equal(objects.boxes, cells.boxes[chosen])
    level = grid.level[cells.index]
    for i, values in enumerate(features):
        rows = [r for r in chosen.tolist() if level[r] == i]
        for value, row in zip(values, rows, strict=True):
            before = int((level[:row] == i).sum())
            assert torch.equal(value, cells.features[i][before])


def test_training_improves_the_branch_and_nothing_else(build: Build, tmp_path: Path) -> None:
    model = build()
    data = batches([96] * 4)
    cells = collect_cells(model, data, rounds=2)
    cells.save(tmp_path / "cells.pth")
    again = CellCache.load(tmp_path / "cells.pth")
    assert len(again) == len(cells) == 24 and torch.equal(again.boxes, cells.boxes)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    grid = make_grid(cells.shapes, model.bbox_head.strides, model.bbox_head.slots)

    def loss() -> float:
        torch.manual_seed(0)
        features, objects = cells.batch(torch.arange(24), grid)
        return float(model.bbox_head.flow_loss_at(features, grid, objects)["loss_flow"].detach())

    model.set_stage(2)
    first, shares = loss(), []
    train_branch(model, again, steps=60, batch_size=16, report=shares.append)
    assert loss() < 0.7 * first
    assert shares[-1] == 1.0 and shares == sorted(shares)
    after = model.state_dict()
    trunk = [k for k in before if not k.startswith("bbox_head.branch.")]
    assert [k for k in trunk if not torch.equal(before[k], after[k])] in ([], ["bbox_head.stage"])
    save_detector(model, tmp_path / "new" / "branch.pth", {"classes": ("a", "b")})
    content = torch.load(tmp_path / "new" / "branch.pth", weights_only=True)
    assert content["meta"]["dataset_meta"]["classes"] == ("a", "b")
    assert torch.equal(content["state_dict"]["bbox_head.stage"], torch.tensor(2).byte())


def test_images_of_different_sizes_are_refused(build: Build) -> None:
    with pytest.raises(ValueError, match="different sizes"):
        collect_cells(build(), batches([96, 128]))
    with pytest.raises(ValueError, match="empty"):
        collect_cells(build(), [])
