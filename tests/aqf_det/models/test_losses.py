"""Losses of stage 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from torch import nn
from torchvision.ops import box_iou

from aqf_core.losses import gaussian_crps, gaussian_kl_loss, gaussian_nll
from aqf_det.models import FlowDetector
from aqf_det.models.coder import decode_sides
from aqf_det.models.detection_losses import focal_bce, gaussian_box_loss, pairwise_iou_max

Build = Callable[..., FlowDetector]
Batch = tuple[torch.Tensor, list[DetDataSample]]
QUANTILE = {"kind": "quantile"}


def test_pixel_kl_loss_is_the_published_one_and_the_others_are_in_cells() -> None:
    mean, target = torch.rand(5, 4) * 50, torch.rand(5, 4) * 50
    log_sigma, stride = torch.randn(5, 4), torch.tensor([8.0, 8, 16, 32, 32])
    cell = stride[:, None]
    sigma_px = log_sigma.exp() * cell
    got = {
        n: gaussian_box_loss(n, mean, log_sigma, target, stride)
        for n in ("kl_pixel", "kl", "nll", "crps")
    }
    torch.testing.assert_close(
        got["kl_pixel"], gaussian_kl_loss(mean, 2 * sigma_px.log(), target, reduction="none")
    )
    torch.testing.assert_close(
        got["nll"] + cell.log(),
        gaussian_nll(mean, sigma_px, target, reduction="none"),
        rtol=1e-4,
        atol=1e-4,
    )
    torch.testing.assert_close(
        got["crps"] * cell,
        gaussian_crps(mean, sigma_px, target, reduction="none"),
        rtol=1e-4,
        atol=1e-4,
    )
    assert not torch.allclose(got["kl"], got["kl_pixel"])


def test_focal_bce_vanishes_where_the_prediction_is_right() -> None:
    logit = torch.tensor([20.0, -20.0, 0.0, 0.0])
    target = torch.tensor([1.0, 0.0, 1.0, 0.5])
    loss = focal_bce(logit, target)
    torch.testing.assert_close(
        loss,
        torch.tensor([0.0, 0.0, 0.25 * np.log(2), 0.0], dtype=torch.float32),
        atol=1e-6,
        rtol=1e-5,
    )


def test_largest_iou_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    others = torch.tensor([[0.0, 0, 10, 5], [5, 0, 15, 10]])
    torch.testing.assert_close(pairwise_iou_max(boxes, others), torch.tensor([0.5, 0.0]))
    assert pairwise_iou_max(boxes, others[:0]).tolist() == [0, 0]


def test_mixup_weights_scale_the_loss_of_their_objects(build: Build, batch: Batch) -> None:
    model = build().train()
    images, samples = batch
    raw = model.bbox_head.flatten(model.bbox_head(model.extract_feat(images))).detach()
    results = {}
    for weight in (1.0, 0.25):
        head = model.bbox_head
        grid = head.grid(model.extract_feat(images))
        boxes = samples[0].gt_instances.bboxes
        assigned = head.assigner.assign(
            grid,
            [boxes, boxes[:0]],
            [samples[0].gt_instances.labels, torch.zeros(0, dtype=torch.long)],
            [torch.full((3,), weight), torch.zeros(0)],
        )
        results[weight] = head.loss_by_feat(raw, grid, assigned, [boxes, boxes[:0]], 96.0**2)
    for name in ("loss_box", "loss_cls"):
        torch.testing.assert_close(results[0.25][name], 0.25 * results[1.0][name])


def test_losses_of_stage_one_by_hand(build: Build) -> None:
    """The published formulas, candidate by candidate, in plain Python."""
    head = build().bbox_head
    grid = head.grid([torch.zeros(1, 1, 96 // s, 96 // s) for s in head.strides])
    raw = torch.randn(1, len(grid), 9 + 3)
    boxes = torch.tensor([[8.0, 10.0, 28.0, 34.0], [30.0, 20.0, 90.0, 80.0]])
    labels, mixed = torch.tensor([0, 2]), torch.tensor([0.3, 0.7])
    assigned = head.assigner.assign(grid, [boxes], [labels], [mixed])
    got = head.loss_by_feat(raw, grid, assigned, [boxes], 96.0**2)

    found = decode_sides(raw[0, :, :4], grid.centre, grid.stride)
    expected = {"loss_box": 0.0, "loss_conf": 0.0, "loss_cls": 0.0}
    for i in range(len(grid)):
        row = raw[0, i]
        mine = (assigned.index == i).nonzero().flatten().tolist()
        weight = float(assigned.weights[mine[0]]) if mine else 1.0
        if mine or box_iou(found[i : i + 1], boxes).max() < 0.5:
            expected["loss_conf"] += weight * _focal(row[8], float(bool(mine)))
        for j in mine:
            target, label = assigned.boxes[j], int(assigned.labels[j])
            width, height = (target[2:] - target[:2]).tolist()
            log_variance = 2 * (row[4:8] + grid.stride[i].log())
            loss = gaussian_kl_loss(found[i], log_variance, target, reduction="none").sum()
            share = 0.1 * (2 - width * height / 96**2)
            expected["loss_box"] += float(loss) * share * weight
            for c in range(3):
                smooth = 0.99 * (c == label) + 0.01 / 3
                expected["loss_cls"] += weight * _focal(row[9 + c], smooth)
    for name, value in expected.items():
        assert float(got[name]) == pytest.approx(value, rel=1e-4), name


def _focal(logit: torch.Tensor, target: float) -> float:
    p = float(logit.sigmoid())
    return abs(target - p) ** 2 * -(target * np.log(p) + (1 - target) * np.log(1 - p))


@pytest.mark.parametrize("stage", [1, 2])
def test_a_batch_may_be_one_image(build: Build, batch: Batch, stage: int, train_steps: Any) -> None:
    model = build(flow=QUANTILE)
    model.set_stage(stage)
    history = train_steps(model, (batch[0][:1], batch[1][:1]), 3)
    assert np.isfinite(history).all()


def test_loss_is_divided_by_the_batch_size(build: Build, batch: Batch) -> None:
    model = build().eval()
    images, samples = batch
    one = model.loss(images[:1], samples[:1])
    two = model.loss(images[:1].repeat(2, 1, 1, 1), [samples[0], samples[0].clone()])
    for name, value in one.items():
        torch.testing.assert_close(two[name], value)


def test_cells_that_find_an_ignored_object_are_not_taught_emptiness(
    build: Build, batch: Batch, predict: Any
) -> None:
    model = build().eval()
    head = model.bbox_head
    maps = model.extract_feat(batch[0][:1])
    raw, grid = head.flatten(head(maps)), head.grid(maps)
    boxes = predict(model, (batch[0][:1], batch[1][:1]))[0].pred_instances.bboxes
    weights = head._negative_weights(raw, grid, [boxes])
    assert 0 < float((weights == 0).sum())
    assert bool((head._negative_weights(raw, grid, [boxes[:0]]) == 1).all())


@pytest.mark.parametrize("base", ["kl_pixel", "kl", "nll", "crps"])
def test_stage_one_learns_boxes_and_classes(
    build: Build, batch: Batch, base: str, train_steps: Any
) -> None:
    model = build(flow={"kind": "gaussian", "loss": base}, test={"score_thr": 0.1})
    torch.manual_seed(0)
    model.train()
    for module in model.modules():  # two images are too few for batch statistics
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.5
    history = train_steps(model, batch, 25)
    assert min(history) < 0.5 * history[0]
    assert np.isfinite(history).all()


def test_training_under_bfloat16_autocast(build: Build, batch: Batch) -> None:
    model = build(flow=QUANTILE).train()
    for stage in (1, 2):
        model.set_stage(stage)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = model.loss(*batch)
        total = sum(losses.values())
        assert total.dtype == torch.float32 and bool(total.isfinite())
        total.backward()
        for parameter in model.parameters():
            assert parameter.grad is None or bool(parameter.grad.isfinite().all())


@pytest.mark.parametrize("stage", [1, 2])
def test_images_without_objects_touch_every_trainable_parameter(
    build: Build, batch: Batch, stage: int
) -> None:
    model = build(flow=QUANTILE).train()
    model.set_stage(stage)
    images, samples = batch[0][1:], batch[1][1:]
    sum(model.loss(images, samples).values()).backward()
    branch = {id(p) for p in model.bbox_head.branch.parameters()}
    for parameter in model.parameters():
        expected = (id(parameter) in branch) == (stage == 2)
        assert (parameter.grad is not None) == expected
