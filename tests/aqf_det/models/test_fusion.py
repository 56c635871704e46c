"""Mirror images and ensembles: several answers about one image become one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmdet.structures import DetDataSample

from aqf_core.mixtures import MixturePredictive
from aqf_det.calibration import CalibrationMismatchError
from aqf_det.models import BoxDistribution, CheckpointKindError, FlowDetector
from aqf_det.models.affine_sides import mirrored, mirrored_boxes
from aqf_det.models.fusion import fuse, mixture
from aqf_det.models.prediction import Detections
from aqf_det.models.prediction_options import PredictionOptions
from aqf_det.models.views import mirrored_images

from .conftest import SIZE

Build = Callable[..., FlowDetector]
Batch = tuple[torch.Tensor, list[DetDataSample]]
QUANTILE = {"kind": "quantile"}
LEVELS = torch.arange(1, 100) / 100.0
OPTIONS = PredictionOptions(score_thr=0.05)


def shaken(model: FlowDetector, seed: int, scale: float = 0.02) -> FlowDetector:
    """Another branch (and another detector, if there is none)."""
    generator = torch.Generator().manual_seed(seed)
    part = model.bbox_head.branch or model.bbox_head.outputs
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model


def gaussian_answer(mean: list, sigma: float, scores: list, labels: list) -> Detections:
    boxes = torch.tensor(mean, dtype=torch.float32).reshape(-1, 4)
    distribution = BoxDistribution.gaussian(boxes[None], torch.full_like(boxes, sigma)[None])
    return Detections(boxes, torch.tensor(scores), torch.tensor(labels), distribution)


# ------------------------------------------------------------------------- mirror images


@pytest.mark.parametrize(
    ("flow", "tolerance"),
    [
        ({"kind": "gaussian"}, 2e-3),
        ({"kind": "quantile"}, 2e-3),
        ({"kind": "quantile", "dependence": "autoregressive"}, None),
    ],
)
def test_the_mirror_image_gives_mirrored_quantiles(
    build: Build, batch: Batch, predict: Any, flow: dict[str, Any], tolerance: float | None
) -> None:
    model = shaken(build(flow=flow, test={"flip": True, "levels": LEVELS.tolist()}), 1)
    images, samples = batch
    for one, other in zip(
        predict(model, batch), predict(model, (images.flip(-1), samples)), strict=True
    ):
        a, b = one.pred_instances, other.pred_instances
        assert len(a) == len(b) > 0 and torch.equal(a.labels, b.labels)
        torch.testing.assert_close(a.scores, b.scores)
        torch.testing.assert_close(mirrored_boxes(a.bboxes, SIZE), b.bboxes, rtol=1e-5, atol=1e-3)
        # x1' = W - x2 and u -> 1 - u; the levels are symmetric, so u -> 1 - u reverses them.
        expected = mirrored_boxes(a.bbox_quantiles, SIZE)
        expected[..., [0, 2]] = expected[..., [0, 2]].flip(1)
        scale = a.bbox_std.amax(-1)[:, None, None]
        # Marginals of joint flows come from 512 draws per view, which differ.
        limit = 0.3 if tolerance is None else tolerance
        distance = ((expected - b.bbox_quantiles) / scale).abs()[:, 4:-4]
        assert float(distance.max()) < limit
        assert bool((b.bbox_quantiles.diff(dim=1) >= 0).all())
        order = [2, 1, 0, 3]
        torch.testing.assert_close(
            a.bbox_var_epistemic[:, order].sqrt() / scale[:, 0],
            b.bbox_var_epistemic.sqrt() / scale[:, 0],
            rtol=0.05,
            atol=0.05,
        )


def test_mirroring_a_distribution_twice_is_no_change() -> None:
    torch.manual_seed(0)
    low = torch.rand(1, 5, 2) * 40
    mean = torch.cat([low, low + 50], -1)
    base = BoxDistribution.gaussian(mean, 1 + torch.rand(1, 5, 4))
    once = mirrored(base, 100.0)
    expected = mirrored_boxes(base.quantiles(LEVELS), 100.0)
    expected[..., [0, 2]] = expected[..., [0, 2]].flip(1)
    torch.testing.assert_close(once.quantiles(LEVELS), expected)
    twice = mirrored(once, 100.0)
    torch.testing.assert_close(twice.quantiles(LEVELS), base.quantiles(LEVELS))
    x = base.samples(50).movedim(1, 0)
    torch.testing.assert_close(twice.marginal().log_prob(x), base.marginal().log_prob(x))
    torch.testing.assert_close(
        once.marginal().cdf(mirrored_boxes(x, 100.0))[..., 2], 1 - base.marginal().cdf(x)[..., 0]
    )
    torch.testing.assert_close(once.samples(7), mirrored_boxes(base.samples(7), 100.0))
    torch.testing.assert_close(once.variance_parts()[0], base.variance_parts()[0][:, [2, 1, 0, 3]])


def test_padding_stays_on_the_right() -> None:
    image = torch.arange(8.0).expand(2, 3, 2, 8).clone()
    found = mirrored_images(image, [{"img_shape": (2, 6)}, {"img_shape": (2, 8)}])
    assert found[0, 0, 0].tolist() == [5, 4, 3, 2, 1, 0, 6, 7]
    assert found[1, 0, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert image[0, 0, 0].tolist() == list(range(8))


# ------------------------------------------------------------------------- ensembles


@pytest.mark.parametrize("dependence", ["independent", "autoregressive"])
def test_identical_members_equal_one(
    build: Build, batch: Batch, predict: Any, tmp_path: Path, dependence: str
) -> None:
    model = shaken(build(flow={**QUANTILE, "dependence": dependence}), 1)
    model.set_stage(2)
    before = predict(model, batch)
    names = set(model.state_dict())
    path = str(tmp_path / "twin.pth")
    torch.save({"state_dict": model.state_dict()}, path)
    model.bbox_head.test_cfg["ensemble"] = [path, path]
    for one, three in zip(before, predict(model, batch), strict=True):
        a, b = one.pred_instances, three.pred_instances
        assert len(a) == len(b) > 0 and torch.equal(a.labels, b.labels)
        for field in ("bboxes", "scores"):
            torch.testing.assert_close(a[field], b[field])
        distance = (a.bbox_quantiles - b.bbox_quantiles).abs() / a.bbox_std[:, None]
        assert float(distance.max()) < (1e-3 if dependence == "independent" else 0.15)
        assert float((b.bbox_var_epistemic.sqrt() / b.bbox_std).max()) < 0.1
    assert set(model.state_dict()) == names


def test_members_on_one_trunk_share_its_features_and_its_boxes(
    build: Build, batch: Batch, predict: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shaken(build(flow=QUANTILE), 1)
    model.set_stage(2)
    alone = [s.pred_instances for s in predict(model, batch)]
    other = shaken(build(flow=QUANTILE), 2)
    other.set_stage(2)
    second = [s.pred_instances for s in predict(other, batch)]
    path = str(tmp_path / "other.pth")
    torch.save({"state_dict": other.state_dict()}, path)
    model.bbox_head.test_cfg["ensemble"] = path
    calls: list[int] = []
    extract = FlowDetector.extract_feat
    monkeypatch.setattr(
        FlowDetector, "extract_feat", lambda self, x: calls.append(1) or extract(self, x)
    )
    together = [s.pred_instances for s in predict(model, batch)]
    assert len(calls) == 1
    for a, b, both in zip(alone, second, together, strict=True):
        torch.testing.assert_close(a.bboxes, both.bboxes)
        torch.testing.assert_close(a.scores, both.scores)
        # A mixture lies between its members at every level, and its spread is theirs and more.
        low = torch.minimum(a.bbox_quantiles, b.bbox_quantiles) - 1e-2
        high = torch.maximum(a.bbox_quantiles, b.bbox_quantiles) + 1e-2
        assert bool(((low <= both.bbox_quantiles) & (both.bbox_quantiles <= high)).all())
        within = (a.bbox_std.square() + b.bbox_std.square()) / 2
        torch.testing.assert_close(both.bbox_var_aleatoric, within, rtol=1e-3, atol=1e-3)
        assert bool((both.bbox_std.square() >= within * 0.999).all())


def test_members_of_another_kind_or_stage_are_refused(
    build: Build, batch: Batch, predict: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "other.pth")
    gaussian = build()
    torch.save({"state_dict": gaussian.state_dict()}, path)
    with pytest.raises(CheckpointKindError, match="untrained"):
        predict(build(flow=QUANTILE, test={"ensemble": [path]}), batch)
    with pytest.raises(FileNotFoundError):
        predict(build(test={"ensemble": [str(tmp_path / "absent.pth")]}), batch)


def test_a_calibration_of_one_member_is_not_that_of_the_ensemble(
    build: Build, batch: Batch, predict: Any
) -> None:
    model = build()
    model.bbox_head.calibration.store(torch.randn(200, 4))
    predict(model, batch)
    model.bbox_head.test_cfg["flip"] = True
    with pytest.raises(CalibrationMismatchError, match=r"with \[\], these .* \[flip=True\]"):
        predict(model, batch)
    model.bbox_head.test_cfg["calibrated"] = False
    predict(model, batch)


# ------------------------------------------------------------------------- how answers are joined

CAT = [10.0, 10.0, 50.0, 50.0]
DOG = [60.0, 60.0, 90.0, 90.0]


def test_answers_about_the_same_object_are_averaged() -> None:
    first = gaussian_answer([CAT, DOG], 2.0, [0.9, 0.5], [0, 1])
    second = gaussian_answer([[12.0, 10.0, 52.0, 50.0]], 2.0, [0.7], [0])
    nothing = gaussian_answer([], 2.0, [], [])
    found = fuse([first, second, nothing], OPTIONS)
    assert found.labels.tolist() == [0, 1]
    torch.testing.assert_close(found.scores, torch.tensor([1.6 / 3, 0.5 / 3]))
    torch.testing.assert_close(found.boxes[0], torch.tensor([11.0, 10.0, 51.0, 50.0]))
    torch.testing.assert_close(found.boxes[1], torch.tensor(DOG))
    aleatoric, epistemic = found.distribution.variance_parts()
    torch.testing.assert_close(aleatoric, torch.full((2, 4), 4.0))
    torch.testing.assert_close(epistemic, torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 0]]))
    # Only one answer knows the dog: its distribution is that answer's.
    alone = first.distribution.quantiles(LEVELS)[1]
    torch.testing.assert_close(found.distribution.quantiles(LEVELS)[1], alone, rtol=0, atol=1e-2)
    samples = found.distribution.samples(4000)
    torch.testing.assert_close(samples.std(1)[:, 0], torch.tensor([5**0.5, 2.0]), rtol=0.05, atol=0)


def test_the_order_of_answers_and_the_class_matter_as_they_should() -> None:
    first = gaussian_answer([CAT], 2.0, [0.9], [0])
    shifted = gaussian_answer([[14.0, 10.0, 54.0, 50.0]], 3.0, [0.6], [0])
    other = gaussian_answer([CAT], 2.0, [0.8], [2])
    one, two = fuse([first, shifted], OPTIONS), fuse([shifted, first], OPTIONS)
    torch.testing.assert_close(one.boxes, two.boxes)
    torch.testing.assert_close(
        one.distribution.quantiles(LEVELS), two.distribution.quantiles(LEVELS), rtol=0, atol=2e-3
    )
    both = fuse([first, other], OPTIONS)
    assert both.labels.tolist() == [0, 2]
    torch.testing.assert_close(both.scores, torch.tensor([0.45, 0.4]))
    assert (
        len(fuse([first, gaussian_answer([], 1.0, [], [])], PredictionOptions(score_thr=0.5))) == 0
    )


def test_a_mixture_of_mixtures_is_one_mixture() -> None:
    """Two members of two passes each against the four Gaussians in one list."""
    torch.manual_seed(0)
    mean, sigma = 50 + 5 * torch.randn(4, 3, 4), 1 + torch.rand(4, 3, 4)
    members = [BoxDistribution.gaussian(mean[i : i + 2], sigma[i : i + 2]) for i in (0, 2)]
    weights = torch.tensor([[0.5, 1.0, 0.25], [0.5, 0.0, 0.75]])
    found = mixture(members, weights)
    flat = weights.repeat_interleave(2, 0)[..., None].expand(4, 3, 4) / 2
    expected = MixturePredictive(
        [torch.distributions.Normal(m, s) for m, s in zip(mean, sigma, strict=True)], flat
    )
    torch.testing.assert_close(
        found.quantiles(LEVELS), expected.quantiles(LEVELS).movedim(-1, 1), rtol=0, atol=5e-3
    )
    for mine, theirs in zip(found.variance_parts(), expected.variance_parts(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    chosen = found.select(torch.tensor([2, 0]))
    torch.testing.assert_close(chosen.quantiles(LEVELS), found.quantiles(LEVELS)[[2, 0]])
