"""The two training stages and the checkpoints between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.runner.checkpoint import load_checkpoint

from aqf_det.models import CheckpointKindError, FlowDetector

Build = Callable[..., FlowDetector]
Batch = tuple[torch.Tensor, list[DetDataSample]]
QUANTILE = {"kind": "quantile"}


@pytest.mark.parametrize(
    "flow",
    [
        {"kind": "quantile"},
        {"kind": "cdf"},
        {"kind": "quantile", "dependence": "autoregressive"},
        {"kind": "gaussian", "branch": True, "loss": "nll"},
    ],
    ids=lambda flow: f"{flow['kind']}-{flow.get('dependence', '')}",
)
def test_stage_two_changes_the_distribution_and_nothing_else(
    build: Build, batch: Batch, flow: dict[str, Any], train_steps: Any, predict: Any
) -> None:
    model = build(flow=flow)
    train_steps(model, batch, 5)
    gaussian = build()
    weights = {k: v for k, v in model.state_dict().items() if "branch" not in k}
    weights["bbox_head.signature"] = gaussian.state_dict()["bbox_head.signature"]
    gaussian.load_state_dict(weights)
    start, reference = predict(model, batch), predict(gaussian, batch)
    trunk = {k: v.clone() for k, v in model.state_dict().items() if "branch" not in k}

    model.set_stage(2)
    train_steps(model, batch, 10)
    end = predict(model, batch)

    for name, value in model.state_dict().items():  # BatchNorm statistics included
        if name in trunk and not name.endswith("stage"):
            assert torch.equal(value, trunk[name]), name
    for first, second, plain in zip(start, end, reference, strict=True):
        a, b, g = first.pred_instances, second.pred_instances, plain.pred_instances
        assert len(a) > 0
        for field in ("bboxes", "scores", "labels"):
            assert torch.equal(a[field], b[field]) and torch.equal(a[field], g[field])
        assert not torch.equal(a.bbox_quantiles, b.bbox_quantiles)
        if flow.get("dependence") != "autoregressive":
            # The flow starts at the stage-1 Gaussian.
            torch.testing.assert_close(a.bbox_quantiles, g.bbox_quantiles, rtol=0, atol=1e-3)


def test_only_the_branch_and_dropout_train_in_stage_two(build: Build) -> None:
    model = build(flow=QUANTILE, dropout=0.15)
    model.set_stage(2)
    for mode in (True, False, True):
        model.train(mode)
        assert model.training == mode
        training = {name for name, m in model.named_modules() if m.training and name}
        assert all("branch" in name or name == "bbox_head.dropout" for name in training)
        assert bool(training) == mode
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trainable == {n for n, _ in model.named_parameters() if "branch" in n}


def test_stage_is_part_of_the_weights(build: Build) -> None:
    model, other = build(flow=QUANTILE), build(flow=QUANTILE)
    model.set_stage(2)
    other.load_state_dict(model.state_dict())
    assert other.stage == 2
    other.train()
    assert not any(p.requires_grad for p in other.backbone.parameters())


def test_stage_two_needs_a_branch(build: Build) -> None:
    with pytest.raises(ValueError, match="no flow branch"):
        build().set_stage(2)


def test_checkpoints_of_another_kind_are_refused(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "c.pth")
    torch.save({"state_dict": build(flow=QUANTILE).state_dict()}, path)
    load_checkpoint(build(flow={"kind": "cdf"}), path)  # before stage 2 there is no difference
    trained = build(flow=QUANTILE)
    trained.set_stage(2)
    torch.save({"state_dict": trained.state_dict()}, path)
    with pytest.raises(CheckpointKindError, match=r"'quantile/spline/independent'.*'cdf/"):
        load_checkpoint(build(flow={"kind": "cdf"}), path)
    with pytest.raises(CheckpointKindError, match=r"'quantile/.*'gaussian'"):
        load_checkpoint(build(), path)
    with pytest.raises(CheckpointKindError, match="shape"):
        load_checkpoint(build(flow=QUANTILE, num_classes=5), path)
    torch.save({"state_dict": {"bbox_head.fc.weight": torch.zeros(3)}}, path)
    with pytest.raises(CheckpointKindError, match="does not hold a FlowYOLOHead"):
        load_checkpoint(build(), path)


def test_a_gaussian_checkpoint_starts_a_flow_but_is_no_trained_flow(
    build: Build, batch: Batch, tmp_path: Path, train_steps: Any, predict: Any
) -> None:
    path = str(tmp_path / "c.pth")
    gaussian, flow = build(), build(flow=QUANTILE)
    train_steps(gaussian, batch, 2)
    torch.save({"state_dict": gaussian.state_dict()}, path)
    load_checkpoint(flow, path)
    a, b = predict(gaussian, batch), predict(flow, batch)
    assert torch.equal(a[0].pred_instances.bboxes, b[0].pred_instances.bboxes)
    with pytest.raises(CheckpointKindError, match="untrained"):
        flow.require_trained_branch()
    gaussian.require_trained_branch()
    flow.set_stage(2)
    flow.require_trained_branch()
    # The loaded head still knows what it is.
    torch.save({"state_dict": flow.state_dict()}, path)
    load_checkpoint(build(flow=QUANTILE), path)
