"""A flow beside stock detectors: their boxes stay, distributions come on top."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.runner import load_checkpoint
from mmengine.structures import InstanceData
from torch.distributions import Normal

from aqf_det.engine.cached_branch import collect_cells
from aqf_det.models import CheckpointKindError
from aqf_det.models.stock_flow import stock_flow_options

from .stock_detectors import DENSE, EVERY, flow_model, pair, stock_model

SIZE = 96
SPREAD = 0.1


def sample(scale: tuple[float, float] = (0.5, 0.75), **meta: Any) -> DetDataSample:
    """A SIZE x SIZE input, by default made of a larger image; no objects."""
    result = DetDataSample(
        metainfo={
            "img_shape": (SIZE, SIZE),
            "batch_input_shape": (SIZE, SIZE),
            "pad_shape": (SIZE, SIZE),
            "ori_shape": (round(SIZE / scale[1]), round(SIZE / scale[0])),
            "scale_factor": scale,
            **meta,
        }
    )
    result.gt_instances = InstanceData(
        bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
    )
    return result


def with_objects(boxes: torch.Tensor, labels: torch.Tensor) -> DetDataSample:
    result = sample((1.0, 1.0))
    result.gt_instances = InstanceData(bboxes=boxes, labels=labels)
    return result


def found(model: Any, images: torch.Tensor, *samples: DetDataSample, **options: Any) -> list[Any]:
    model.eval()
    given = list(samples) or [sample() for _ in images]
    with torch.no_grad():
        return [s.pred_instances for s in model.predict(images, given, **options)]


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, SIZE, SIZE)


def take_steps(model: Any, images: torch.Tensor, samples: list[Any], steps: int = 3) -> list[float]:
    """Stage 2."""
    model.set_stage(2)
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    history = []
    for _ in range(steps):
        loss = sum(model.loss(images, samples).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(float(loss.detach()))
    return history


def shaken_truths(model: Any, images: torch.Tensor, shift: float = 0.1) -> list[DetDataSample]:
    """Annotations: what the detector finds, each side further right or down by a share of it."""
    results = found(model, images, *[sample((1.0, 1.0)) for _ in images], rescale=False)
    size = [(r.bboxes[:, 2:] - r.bboxes[:, :2]).repeat(1, 2) for r in results]
    return [
        with_objects(r.bboxes + shift * s, r.labels) for r, s in zip(results, size, strict=True)
    ]


@pytest.mark.parametrize("name", EVERY)
def test_stock_detections_are_unchanged_bit_for_bit(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    stock, flow = pair(name, tmp_path, images)
    for rescale in (True, False):
        expected = found(stock, images, rescale=rescale)
        before = found(flow, images, rescale=rescale)
        assert min(len(r) for r in expected) > 2
        for a, b in zip(expected, before, strict=True):
            assert all(torch.equal(a[key], b[key]) for key in ("bboxes", "scores", "labels"))
    weights = {k: v.clone() for k, v in flow.state_dict().items()}
    history = take_steps(flow, images, shaken_truths(flow, images))
    assert history[0] > 0
    expected = found(stock, images)
    for a, b in zip(expected, found(flow, images), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in ("bboxes", "scores", "labels"))
    changed = {k for k, v in flow.state_dict().items() if not torch.equal(v, weights[k])}
    assert changed and all(".branch." in k or k.endswith(".stage") for k in changed)


@pytest.mark.parametrize("name", EVERY)
def test_the_flow_starts_as_a_gaussian_around_the_stock_box(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    levels = tuple(Normal(0, 1).cdf(torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])).tolist())
    _, flow = pair(name, tmp_path, images, test={"levels": levels, "n_samples": 400})
    samples = [sample() for _ in images]
    for result, data in zip(found(flow, images, *samples), samples, strict=True):
        size = (result.bboxes[:, 2:] - result.bboxes[:, :2]).repeat(1, 2)
        least = 1 / torch.tensor([0.5, 0.75, 0.5, 0.75])  # one pixel of the network's input
        sigma = SPREAD * torch.maximum(size, least)
        steps = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None]
        expected = result.bboxes[:, None] + steps * sigma[:, None]
        torch.testing.assert_close(result.bbox_quantiles, expected, atol=2e-3, rtol=1e-4)
        torch.testing.assert_close(result.bbox_std, sigma, rtol=1e-2, atol=1e-3)
        assert result.bbox_samples.shape == (len(result), 400, 4)
        torch.testing.assert_close(result.bbox_samples.std(1), sigma, rtol=0.05, atol=1e-3)
        assert data.metainfo["quantile_levels"] == levels


@pytest.mark.parametrize("name", ["rtmdet", "frcnn"])
@pytest.mark.parametrize(
    "flow",
    [
        {"kind": "gaussian"},
        {"kind": "gaussian", "loss": "nll"},
        {"kind": "quantile", "dependence": "autoregressive"},
        {"kind": "cdf", "transformer": "spline"},
    ],
)
def test_every_kind_learns_where_the_sides_are(
    name: str, flow: dict[str, Any], tmp_path: Path, images: torch.Tensor
) -> None:
    _, model = pair(name, tmp_path, images, flow=flow, test={"n_samples": 8}, min_iou=0.3)
    truths = shaken_truths(model, images, 0.1)
    history = take_steps(model, images, truths, 30)
    assert history[-1] < history[0] - 0.2
    for result in found(model, images, *[sample((1.0, 1.0)) for _ in images]):
        assert bool((result.bbox_quantiles.diff(dim=1) >= 0).all())
        assert result.bbox_quantiles.shape == (len(result), 9, 4)
        size = (result.bboxes[:, 2:] - result.bboxes[:, :2]).repeat(1, 2)
        big = size > 10
        moved = (result.bbox_quantiles[:, 4] - result.bboxes)[big] / size[big]
        assert 0.05 < float(moved.median()) < 0.15
        assert float((result.bbox_std[big] / size[big]).median()) < 0.8 * SPREAD
        if flow.get("dependence") == "autoregressive":
            low, high = result.bbox_samples[..., :2], result.bbox_samples[..., 2:]
            assert bool((low < high)[(size[:, :2] > 0)[:, None].expand_as(low)].all())


def test_the_branch_recovers_a_known_skewed_distribution(
    tmp_path: Path, images: torch.Tensor
) -> None:
    """Sides lie beyond the box by an exponential share of it; new draws in every step."""
    torch.manual_seed(0)
    _, model = pair("fcos", tmp_path, images)
    model.set_stage(2)
    model.train()
    head = model.flow_head
    with torch.no_grad():
        maps = model.extract_feat(images)
    boxes = torch.tensor([[10.0, 10.0, 60.0, 50.0], [30.0, 20.0, 90.0, 90.0]]).repeat(40, 1)
    rois = torch.cat([torch.zeros(len(boxes), 1), boxes], 1)
    features = model.box_features(maps, rois)
    size = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    frame = torch.tensor([0.0, 0.0, *images.shape[:-3:-1]])
    optimizer = torch.optim.Adam(head.branch.parameters(), 5e-3)
    for step in range(160):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * 0.5 * (1 + math.cos(math.pi * step / 160))
        noise = torch.empty_like(boxes).exponential_()
        targets = boxes + 0.05 * size * noise
        loss = head.flow_loss(features, boxes, frame.expand_as(boxes), targets)["loss_flow"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        levels = torch.tensor([0.1, 0.5, 0.9])
        found = head.distribution(features[:2], boxes[:2], frame, head.options)
        quantiles = found.quantiles(levels)
    truth = 0.05 * size[:2, None] * -(1 - levels).log()[:, None]
    error = (quantiles - boxes[:2, None] - truth) / size[:2, None]
    assert float(error.abs().max()) < 0.012


@pytest.mark.parametrize("name", EVERY)
def test_a_batch_without_objects_reaches_every_trainable_parameter(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    _, model = pair(name, tmp_path, images)
    model.set_stage(2)
    model.train()
    samples = [sample((1.0, 1.0)) for _ in images]
    loss = sum(model.loss(images, samples).values())
    loss.backward()
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    assert trainable and all(".branch." in n for n, _ in trainable)
    assert all(p.grad is not None and bool((p.grad == 0).all()) for _, p in trainable)
    assert not any(m.training for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))


@pytest.mark.parametrize("name", EVERY)
def test_stage_one_is_the_stock_training(name: str, tmp_path: Path, images: torch.Tensor) -> None:
    stock, flow = pair(name, tmp_path, images)
    boxes = torch.tensor([[10.0, 12.0, 60.0, 70.0], [50.0, 30.0, 90.0, 92.0]])
    samples = [with_objects(boxes, torch.tensor([0, 2])), sample((1.0, 1.0))]
    losses = []
    for model in (stock, flow):
        torch.manual_seed(1)  # proposals are sampled
        model.train()
        losses.append(model.parse_losses(model.loss(images, samples))[0])
    assert float(losses[0]) > 0 and torch.equal(*losses)


@pytest.mark.parametrize("name", ["rtmdet", "frcnn"])
def test_quantiles_follow_the_scale_of_the_original_image(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    _, model = pair(name, tmp_path, images, test={"n_samples": 4})
    take_steps(model, images, shaken_truths(model, images), 5)
    once = found(model, images, *[sample((1.0, 1.0)) for _ in images])
    twice = found(model, images, *[sample((0.5, 0.5)) for _ in images])
    for a, b in zip(once, twice, strict=True):
        for key in ("bboxes", "bbox_quantiles", "bbox_std", "bbox_samples"):
            torch.testing.assert_close(2 * a[key], b[key], rtol=1e-5, atol=1e-3)


def test_a_letterboxed_image_is_mapped_back_without_its_bars(
    tmp_path: Path, images: torch.Tensor
) -> None:
    _, model = pair("frcnn", tmp_path, images)
    bars = {"pad_param": [12.0, 12.0, 8.0, 8.0]}
    plain = found(model, images, *[sample((0.5, 0.5)) for _ in images])
    boxed = found(model, images, *[sample((0.5, 0.5), **bars) for _ in images])
    shift = torch.tensor([16.0, 24.0, 16.0, 24.0])
    for a, b in zip(plain, boxed, strict=True):
        torch.testing.assert_close(a.bboxes - shift, b.bboxes)
        torch.testing.assert_close(a.bbox_quantiles - shift, b.bbox_quantiles)


@pytest.mark.parametrize("name", ["rtmdet", "frcnn"])
def test_a_saved_detector_predicts_the_same_when_loaded(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    _, model = pair(name, tmp_path, images)
    take_steps(model, images, shaken_truths(model, images))
    path = tmp_path / "flow.pth"
    torch.save({"state_dict": model.state_dict()}, path)
    again = MODELS.build(flow_model(stock_model(name)))
    load_checkpoint(again, str(path), map_location="cpu")
    assert again.stage == 2
    again.require_trained_branch()
    for a, b in zip(found(model, images), found(again, images), strict=True):
        assert torch.equal(a.bboxes, b.bboxes) and torch.equal(a.bbox_quantiles, b.bbox_quantiles)


@pytest.mark.parametrize("name", ["rtmdet", "frcnn"])
def test_mc_dropout_widens_distributions_and_moves_no_box(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    stock, model = pair(name, tmp_path, images, dropout=0.3, test={"mc_passes": 6})
    take_steps(model, images, shaken_truths(model, images), 5)
    results = found(model, images)
    for a, b in zip(found(stock, images), results, strict=True):
        assert torch.equal(a.bboxes, b.bboxes) and torch.equal(a.scores, b.scores)
        assert bool((b.bbox_var_epistemic > 0).any())
        total = b.bbox_var_aleatoric + b.bbox_var_epistemic
        torch.testing.assert_close(total.sqrt(), b.bbox_std)
        assert bool((b.bbox_quantiles.diff(dim=1) >= 0).all())


@pytest.mark.parametrize("name", ["rtmdet", "frcnn"])
def test_with_flip_an_image_and_its_mirror_image_agree(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    _, model = pair(name, tmp_path, images, test={"flip": True})
    take_steps(model, images, shaken_truths(model, images), 5)
    results = found(model, images, *[sample((1.0, 1.0)) for _ in images])
    mirrored = found(model, images.flip(-1), *[sample((1.0, 1.0)) for _ in images])
    for a, b in zip(results, mirrored, strict=True):
        assert len(a) == len(b) > 0
        order = (2, 1, 0, 3)
        for key in ("bboxes", "bbox_quantiles"):
            value = b[key].flip(1) if key == "bbox_quantiles" else b[key]
            back = value[..., order] * torch.tensor([-1.0, 1, -1, 1]) + torch.tensor(
                [SIZE, 0.0, SIZE, 0]
            )
            rows = a[key][:, :, ::2] if key == "bbox_quantiles" else a[key][:, ::2]
            torch.testing.assert_close(rows, back[..., ::2], atol=1e-2, rtol=1e-3)


def test_an_ensemble_of_flows_on_one_stock_detector_keeps_its_boxes(
    tmp_path: Path, images: torch.Tensor
) -> None:
    stock, model = pair("rtmdet", tmp_path, images)
    take_steps(model, images, shaken_truths(model, images), 3)
    path = tmp_path / "member.pth"
    torch.save({"state_dict": model.state_dict()}, path)
    take_steps(model, images, shaken_truths(model, images, -0.1), 10)
    model.flow_head.test_cfg = {**model.flow_head.test_cfg, "ensemble": str(path)}
    for a, b in zip(found(stock, images), found(model, images), strict=True):
        torch.testing.assert_close(a.bboxes, b.bboxes, atol=1e-3, rtol=1e-4)
        assert bool((b.bbox_var_epistemic > 0).any())


def test_an_image_without_detections_gives_empty_results(
    tmp_path: Path, images: torch.Tensor
) -> None:
    for name in ("rtmdet", "frcnn"):
        _, model = pair(name, tmp_path, images, test={"score_thr": 0.999999, "n_samples": 3})
        for result in found(model, images):
            assert result.bbox_quantiles.shape == (0, 9, 4)
            assert result.bbox_std.shape == (0, 4) and result.bbox_samples.shape == (0, 3, 4)


def test_mixed_precision_trains_the_flow_on_the_boxes_of_the_test(
    tmp_path: Path, images: torch.Tensor
) -> None:
    for name in ("fcos", "frcnn"):
        _, model = pair(name, tmp_path, images, min_iou=0.3)
        samples = shaken_truths(model, images)
        model.set_stage(2)
        model.train()
        boxes = model.training_boxes(images, samples)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = model.training_boxes(images, samples)[0]
            loss = model.loss(images, samples)["loss_flow"]
        assert len(boxes) > 0 and torch.equal(boxes, again)
        loss.backward()
        assert bool(loss.isfinite())


# ------------------------------------------------------------------------------ bad input


def test_a_head_that_predicts_no_distances_is_refused() -> None:
    model = stock_model("atss")
    model.bbox_head.type = "RetinaHead"
    with pytest.raises(TypeError, match="FCOSHead, ATSSHead, GFLHead .* got RetinaHead"):
        MODELS.build(flow_model(model))


def test_a_two_stage_detector_needs_the_head_with_the_flow() -> None:
    model = stock_model("frcnn")
    model.type = "FlowTwoStageDetector"
    with pytest.raises(TypeError, match="FlowBBoxHead, got StandardRoIHead with Shared2FCBBoxHead"):
        MODELS.build(model)


@pytest.mark.parametrize("name", ["rtmdet", "frcnn"])
def test_options_that_make_no_sense_are_refused_early(name: str) -> None:
    stock = stock_model(name)
    with pytest.raises(ValueError, match="voting needs the candidates"):
        MODELS.build(flow_model(stock, test={"voting": "variance"}))
    with pytest.raises(ValueError, match="needs a head trained with dropout"):
        MODELS.build(flow_model(stock, test={"mc_passes": 5}))
    with pytest.raises(ValueError, match="spread must be positive"):
        MODELS.build(flow_model(stock, spread=0.0))


def test_a_stock_detector_has_no_gaussian_to_train() -> None:
    for flow in ({"kind": "gaussian", "branch": False}, {"kind": "quantile", "base": "nll"}):
        with pytest.raises(ValueError, match="no Gaussian of its own"):
            stock_flow_options(flow)
    assert stock_flow_options({"kind": "gaussian"}).signature == "gaussian/affine/independent"


@pytest.mark.parametrize("name", ["rtmdet", "frcnn"])
def test_weights_of_another_detector_are_refused(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    pair(name, tmp_path, images)
    config = flow_model(stock_model(name))
    head = config.roi_head.bbox_head if name == "frcnn" else config.bbox_head
    head.num_classes = 5
    with pytest.raises(CheckpointKindError, match="has shape .* with its number of classes"):
        load_checkpoint(MODELS.build(config), str(tmp_path / f"{name}.pth"))
    part = {"state_dict": {"backbone.stem.0.conv.weight": torch.zeros(1)}}
    torch.save(part, tmp_path / "part.pth")
    with pytest.raises(CheckpointKindError, match="the checkpoint"):
        load_checkpoint(MODELS.build(flow_model(stock_model(name))), str(tmp_path / "part.pth"))


@pytest.mark.parametrize("name", DENSE)
def test_a_stock_checkpoint_alone_is_not_evaluated(
    name: str, tmp_path: Path, images: torch.Tensor
) -> None:
    _, model = pair(name, tmp_path, images)
    assert model.stage == 1
    with pytest.raises(CheckpointKindError, match="flow branch is untrained"):
        model.require_trained_branch()


def test_cells_of_a_stock_detector_are_not_cached(tmp_path: Path, images: torch.Tensor) -> None:
    _, model = pair("fcos", tmp_path, images)
    with pytest.raises(TypeError, match="train the flow beside a stock detector with tools/train"):
        collect_cells(model, [])


def test_a_calibrated_detector_is_not_trained_on(tmp_path: Path, images: torch.Tensor) -> None:
    _, model = pair("rtmdet", tmp_path, images)
    model.flow_head.calibration.store(torch.randn(200, 4))
    with pytest.raises(RuntimeError, match="calibrated"):
        model.loss(images, [sample((1.0, 1.0)) for _ in images])
