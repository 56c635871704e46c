"""Training branches on cached features is stage 2 itself, only faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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


def two_moded_cells(model: FlowDetector, count: int, seed: int) -> CellCache:
    """Cells whose first feature decides how often the right side lies far out, not where.

    Three sides are the detector's mean plus Gaussian noise of one standard deviation. The right
    side is 3 standard deviations beyond the mean with probability sigmoid(2 f), else 3 short of it.
    """
    head = model.bbox_head
    generator = torch.Generator().manual_seed(seed)
    shapes = ((12, 12), (6, 6), (3, 3))
    grid = make_grid(shapes, head.strides, head.slots)
    middle = (grid.level == 1).nonzero().flatten()
    index = middle[torch.randint(len(middle), (count,), generator=generator)]
    width = head.hidden_channels[1]
    features = torch.randn(count, width, generator=generator)
    none = features.new_zeros(0, width)
    with torch.no_grad():
        raw = head.raw_at([none, features, none], grid, index)
        mean, sigma = (part[0] for part in head.gaussian(raw, grid, index))
    noise = torch.randn(count, 4, generator=generator)
    far = torch.rand(count, generator=generator) < torch.sigmoid(2 * features[:, 0])
    noise[:, 2] = torch.where(far, 3.0, -3.0) + 0.1 * noise[:, 2]
    return CellCache(
        shapes=shapes,
        features=(none, features, none),
        index=index,
        boxes=mean + sigma * noise,
        labels=torch.zeros(count, dtype=torch.long),
        weights=torch.ones(count),
        frame=torch.tensor([0.0, 0.0, 96.0, 96.0]).expand(count, 4),
    )


def cut_cells(model: FlowDetector, count: int, seed: int) -> CellCache:
    """Cells whose objects would end 3 standard deviations of noise around the detector's mean.

    A border up to 3 standard deviations from the right side cuts all that reach further.
    """
    cells = two_moded_cells(model, count, seed)
    head = model.bbox_head
    grid = make_grid(cells.shapes, head.strides, head.slots)
    with torch.no_grad():
        raw = head.raw_at(cells.features, grid, cells.index)
        mean, sigma = (part[0] for part in head.gaussian(raw, grid, cells.index))
    generator = torch.Generator().manual_seed(seed)
    boxes = mean + 3 * sigma * torch.randn(count, 4, generator=generator)
    room = 6 * torch.rand(count, generator=generator) - 3
    frame = mean + torch.tensor([-1.0, -1.0, 1.0, 1.0]) * 1e4
    frame[:, 2] = mean[:, 2] + room * sigma[:, 2]
    boxes[:, 2] = boxes[:, 2].minimum(frame[:, 2])
    return replace(cells, boxes=boxes, frame=frame)


def crps_of_sides(model: FlowDetector, cells: CellCache) -> torch.Tensor:
    """Mean CRPS of each side, in pixels."""
    head = model.bbox_head
    grid = make_grid(cells.shapes, head.strides, head.slots)
    with torch.no_grad():
        features, objects = cells.batch(torch.arange(len(cells)), grid)
        raw = head.raw_at(features, grid, objects.index)
        mean, sigma = head.gaussian(raw, grid, objects.index)
        level, slot = grid.level[objects.index], grid.slot[objects.index]
        found = head.branch([f[None] for f in features], level, slot, mean, sigma, objects.frame)
        return found.marginal().crps(objects.boxes).mean(0)


@pytest.mark.slow
def test_a_flow_beats_every_gaussian_where_a_side_has_two_modes(build: Build) -> None:
    flows = {
        "qfr": {"kind": "quantile"},
        "cdfr": {"kind": "cdf"},
        "nll": {"kind": "gaussian", "branch": True, "loss": "nll"},
        "crps": {"kind": "gaussian", "branch": True, "loss": "crps"},
    }
    scores = {}
    for name, flow in flows.items():
        model = build(**flow, width=32, hidden=(32,))
        train_branch(model, two_moded_cells(model, 4000, seed=1), steps=250, batch_size=64)
        scores[name] = crps_of_sides(model, two_moded_cells(model, 2000, seed=2))
    best_gaussian = torch.minimum(scores["nll"], scores["crps"])
    for name in ("qfr", "cdfr"):
        assert scores[name][2] < 0.9 * best_gaussian[2], scores
        # Where the truth is a Gaussian there is nothing to gain, and little may be lost.
        assert (scores[name][[0, 1, 3]] < 1.03 * best_gaussian[[0, 1, 3]]).all(), scores


@pytest.mark.slow
def test_a_flow_that_knows_the_border_learns_where_objects_are_cut(build: Build) -> None:
    flows = {
        "qfr": {"kind": "quantile", "borders": True},
        "blind": {"kind": "quantile"},
        "gaussian": {"kind": "gaussian", "branch": True, "loss": "crps", "borders": True},
    }
    scores = {}
    for name, flow in flows.items():
        model = build(**flow, width=32, hidden=(32,))
        train_branch(model, cut_cells(model, 4000, seed=1), steps=250, batch_size=64)
        scores[name] = crps_of_sides(model, cut_cells(model, 2000, seed=2))
    assert scores["qfr"][2] < 0.97 * scores["blind"][2], scores
    assert scores["qfr"][2] < 0.985 * scores["gaussian"][2], scores
