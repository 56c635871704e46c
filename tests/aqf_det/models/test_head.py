"""Losses, stages, prediction and bad input of the head and the detector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.runner.checkpoint import load_checkpoint
from torch import nn

from aqf_core.errors import LevelError, UnknownNameError
from aqf_core.losses import gaussian_crps, gaussian_kl_loss, gaussian_nll
from aqf_det.models import CheckpointKindError, FlowDetector, FlowOptions, resolve_levels
from aqf_det.models.detection_losses import focal_bce, gaussian_box_loss, pairwise_iou_max

Build = Callable[..., FlowDetector]
Batch = tuple[torch.Tensor, list[DetDataSample]]
QUANTILE = {"kind": "quantile"}


def train_steps(model: FlowDetector, batch: Batch, steps: int, lr: float = 1e-2) -> list[float]:
    """Adam steps on one batch; returns the losses."""
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


def predict(model: FlowDetector, batch: Batch, **kwargs: Any) -> list[DetDataSample]:
    """Detections of a batch in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return model.predict(batch[0], [s.clone() for s in batch[1]], **kwargs)


# ------------------------------------------------------------------------- losses


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


def test_loss_is_divided_by_the_batch_size(build: Build, batch: Batch) -> None:
    model = build().eval()
    images, samples = batch
    one = model.loss(images[:1], samples[:1])
    two = model.loss(images[:1].repeat(2, 1, 1, 1), [samples[0], samples[0].clone()])
    for name, value in one.items():
        torch.testing.assert_close(two[name], value)


def test_cells_that_find_an_ignored_object_are_not_taught_emptiness(
    build: Build, batch: Batch
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
def test_stage_one_learns_boxes_and_classes(build: Build, batch: Batch, base: str) -> None:
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


# ------------------------------------------------------------------------- stages


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
    build: Build, batch: Batch, flow: dict[str, Any]
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


# ------------------------------------------------------------------------- prediction


def test_fields_shapes_and_levels_of_a_prediction(build: Build, batch: Batch) -> None:
    levels = [0.05, 0.5, 0.95]
    model = build(flow=QUANTILE, test={"levels": levels, "n_samples": 7})
    for sample in predict(model, batch):
        found = sample.pred_instances
        count = len(found)
        assert 0 < count <= 20
        assert found.bboxes.shape == found.bbox_std.shape == (count, 4)
        assert found.bbox_quantiles.shape == (count, 3, 4)
        assert found.bbox_samples.shape == (count, 7, 4)
        assert "bbox_var_epistemic" not in found
        assert sample.metainfo["quantile_levels"] == tuple(levels)
        assert bool((found.bbox_quantiles.diff(dim=1) > 0).all())
        # The identity flow's median is the point box.
        torch.testing.assert_close(found.bbox_quantiles[:, 1], found.bboxes, rtol=0, atol=1e-3)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("dependence", ["independent", "autoregressive"])
def test_no_detections_give_empty_fields(
    build: Build, batch: Batch, passes: int, dependence: str
) -> None:
    flow = {"kind": "quantile", "dependence": dependence}
    test = {"score_thr": 0.999, "n_samples": 5, "mc_passes": passes}
    for sample in predict(build(flow=flow, dropout=0.15, test=test), batch):
        found = sample.pred_instances
        assert len(found) == 0
        assert found.bbox_quantiles.shape == (0, 9, 4)
        assert found.bbox_samples.shape == (0, 5, 4)
        assert found.bboxes.shape == found.bbox_std.shape == (0, 4)


def test_coordinates_return_to_original_pixels(build: Build, batch: Batch) -> None:
    model = build(test={"n_samples": 4, "mc_passes": 2}, dropout=0.3)
    images, samples = batch
    samples = [s.clone() for s in samples]
    raw = predict(model, (images, samples), rescale=False)
    for sample in samples:
        sample.set_metainfo({"scale_factor": (0.5, 0.25), "pad_param": np.array([6.0, 6, 2, 2])})
    scaled = predict(model, (images, samples), rescale=True)
    offset, scale = torch.tensor([2.0, 6, 2, 6]), torch.tensor([0.5, 0.25, 0.5, 0.25])
    for a, b in zip(raw, scaled, strict=True):
        a, b = a.pred_instances, b.pred_instances
        for name in ("bboxes", "bbox_quantiles", "bbox_samples"):
            torch.testing.assert_close(b[name], (a[name] - offset) / scale)
        torch.testing.assert_close(b.bbox_std, a.bbox_std / scale)
        for name in ("bbox_var_aleatoric", "bbox_var_epistemic"):
            torch.testing.assert_close(b[name], a[name] / scale**2)


def test_batching_does_not_change_predictions(build: Build, batch: Batch) -> None:
    model = build(flow=QUANTILE)
    together = predict(model, batch)
    for i in range(2):
        alone = predict(model, (batch[0][i : i + 1], batch[1][i : i + 1]))[0].pred_instances
        torch.testing.assert_close(alone.bboxes, together[i].pred_instances.bboxes)
        torch.testing.assert_close(alone.bbox_quantiles, together[i].pred_instances.bbox_quantiles)


def test_raw_maps_can_be_exported(build: Build, batch: Batch) -> None:
    model = build(flow=QUANTILE).eval()
    with torch.no_grad():
        program = torch.export.export(model, (batch[0],)).module()
        for exported, eager in zip(program(batch[0]), model(batch[0]), strict=True):
            torch.testing.assert_close(exported, eager)


# ------------------------------------------------------------------------- MC dropout


def test_mc_dropout_leaves_the_network_untouched_and_repeats_itself(
    build: Build, batch: Batch
) -> None:
    model = build(flow=QUANTILE, dropout=0.15, test={"mc_passes": 4})
    before = {k: v.clone() for k, v in model.state_dict().items()}
    first, second = predict(model, batch), predict(model, batch)
    assert not any(m.training for m in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.pred_instances.bbox_quantiles, b.pred_instances.bbox_quantiles)


def test_mc_dropout_is_a_mixture_of_thinned_networks(build: Build, batch: Batch) -> None:
    """The law of total variance, and quantiles of the mixture against its samples."""
    passes = 4
    model = build(dropout=0.5, test={"mc_passes": passes, "n_samples": 8192})
    for sample in predict(model, batch):
        found = sample.pred_instances
        assert len(found) > 0 and bool((found.bbox_var_epistemic > 0).all())
        torch.testing.assert_close(
            found.bbox_std**2, found.bbox_var_aleatoric + found.bbox_var_epistemic
        )
        spread = found.bbox_samples.std(1)
        torch.testing.assert_close(spread, found.bbox_std, rtol=0.05, atol=0)
        levels = torch.tensor(sample.metainfo["quantile_levels"])
        below = (found.bbox_samples[:, :, None] <= found.bbox_quantiles[:, None]).float().mean(1)
        torch.testing.assert_close(
            below, levels[:, None].expand_as(below[0]).expand_as(below), atol=0.02, rtol=0
        )


def test_mc_point_boxes_are_the_mean_over_passes(build: Build, batch: Batch) -> None:
    from aqf_det.models.coder import decode_sides
    from aqf_det.models.mc_dropout import channel_masks

    model = build(
        dropout=0.3, test={"mc_passes": 5, "nms": {"type": "nms", "iou_threshold": 0.999}}
    )
    head = model.bbox_head
    found = predict(model, batch)[0].pred_instances
    with torch.no_grad():
        hidden = head.hidden(model.extract_feat(batch[0][:1]))
        grid = head.grid(hidden)
        masks = channel_masks(5, head.hidden_channels, 0.3)
        boxes = []
        for t in range(5):
            thinned = [h * m[t][None, :, None, None] for h, m in zip(hidden, masks, strict=True)]
            raw = head.flatten(head.raw_maps(thinned))[0]
            boxes.append(decode_sides(raw[:, :4], grid.centre, grid.stride))
    mean = torch.stack(boxes).mean(0)
    distance = (found.bboxes[:, None] - mean).abs().amax(-1).amin(1)
    assert float(distance.max()) < 1e-3


def test_passes_without_dropout_are_refused(build: Build, batch: Batch) -> None:
    with pytest.raises(ValueError, match="trained with dropout"):
        predict(build(test={"mc_passes": 10}), batch)
    with pytest.raises(ValueError, match="at least 1"):
        predict(build(test={"mc_passes": 0}), batch)


# ------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("levels", [[0.0, 0.5], [0.5, 1.0], [-1], [0.5, 0.5], [], [0.9, 0.1], 0])
def test_levels_outside_or_out_of_order_are_refused(levels: Any) -> None:
    with pytest.raises(LevelError):
        resolve_levels(levels)


def test_default_levels() -> None:
    assert resolve_levels(199)[0] == 1 / 200 and resolve_levels(199)[-1] == 199 / 200


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        ({"kind": "normal"}, "unknown flow kind 'normal'; choose from gaussian, quantile, cdf"),
        ({"kind": "quantile", "dependence": "full"}, "unknown dependence"),
        ({"kind": "gaussian", "loss": "l1"}, "unknown Gaussian loss"),
        ({"kind": "quantile", "layers": 3}, "unknown flow option 'layers'"),
        ({"kind": "quantile", "transformer": "cubic"}, "cubic"),
    ],
)
def test_unknown_names_are_listed(build: Build, flow: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        build(flow=flow)


def test_contradicting_gaussian_options_are_refused() -> None:
    with pytest.raises(ValueError, match="branch=True"):
        FlowOptions.parse({"kind": "gaussian", "loss": "nll", "base": "kl_pixel"})
    with pytest.raises(ValueError, match="'nll' or 'crps'"):
        FlowOptions.parse({"kind": "gaussian", "branch": True, "loss": "kl_pixel"})


def test_unknown_test_option_is_named(build: Build, batch: Batch) -> None:
    with pytest.raises(UnknownNameError, match="mc_pases"):
        predict(build(test={"mc_pases": 3}), batch)


def test_checkpoints_of_another_kind_are_refused(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "c.pth")
    torch.save({"state_dict": build(flow=QUANTILE).state_dict()}, path)
    with pytest.raises(CheckpointKindError, match=r"'quantile/spline/independent'.*'cdf/"):
        load_checkpoint(build(flow={"kind": "cdf"}), path)
    with pytest.raises(CheckpointKindError, match="shape"):
        load_checkpoint(build(flow=QUANTILE, num_classes=5), path)
    torch.save({"state_dict": {"bbox_head.fc.weight": torch.zeros(3)}}, path)
    with pytest.raises(CheckpointKindError, match="does not hold a FlowYOLOHead"):
        load_checkpoint(build(), path)


def test_a_gaussian_checkpoint_starts_a_flow_but_is_no_trained_flow(
    build: Build, batch: Batch, tmp_path: Path
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
