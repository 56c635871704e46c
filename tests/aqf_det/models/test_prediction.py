"""Detections with their distributions, and options that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample

from aqf_core.errors import LevelError, UnknownNameError
from aqf_det.models import FlowDetector, FlowOptions, resolve_levels

Build = Callable[..., FlowDetector]
Batch = tuple[torch.Tensor, list[DetDataSample]]
QUANTILE = {"kind": "quantile"}


def test_fields_shapes_and_levels_of_a_prediction(build: Build, batch: Batch, predict: Any) -> None:
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
    build: Build, batch: Batch, passes: int, dependence: str, predict: Any
) -> None:
    flow = {"kind": "quantile", "dependence": dependence}
    test = {"score_thr": 0.999, "n_samples": 5, "mc_passes": passes}
    for sample in predict(build(flow=flow, dropout=0.15, test=test), batch):
        found = sample.pred_instances
        assert len(found) == 0
        assert found.bbox_quantiles.shape == (0, 9, 4)
        assert found.bbox_samples.shape == (0, 5, 4)
        assert found.bboxes.shape == found.bbox_std.shape == (0, 4)


def test_coordinates_return_to_original_pixels(build: Build, batch: Batch, predict: Any) -> None:
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


def test_batching_does_not_change_predictions(build: Build, batch: Batch, predict: Any) -> None:
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


@pytest.mark.parametrize(
    "levels", [[0.0, 0.5], [0.5, 1.0], [-1], [0.5, 0.5], [], [0.9, 0.1], 0, 1.5]
)
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


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        ({"kind": "quantile", "loss": "nll"}, "loss='nll' is impossible.*'quantile' is trained by"),
        ({"kind": "cdf", "branch": False}, "a flow is a branch"),
        ({"kind": "gaussian", "transformer": "spline"}, "affine"),
        ({"kind": "gaussian", "dependence": "autoregressive"}, "branch=True"),
    ],
)
def test_options_without_effect_are_refused(flow: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlowOptions.parse(flow)


@pytest.mark.parametrize(
    ("test", "message"),
    [({"levels": [0.5, 95]}, "not percentages"), ({"mc_passes": 10}, "trained with dropout")],
)
def test_wrong_test_options_are_refused_before_training(
    build: Build, test: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(test=test)


def test_unknown_test_option_is_named(build: Build, batch: Batch, predict: Any) -> None:
    with pytest.raises(UnknownNameError, match="mc_pases"):
        predict(build(test={"mc_pases": 3}), batch)
