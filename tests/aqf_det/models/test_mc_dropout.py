"""MC dropout: a mixture of thinned networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmdet.structures import DetDataSample

from aqf_det.models import FlowDetector
from aqf_det.models.coder import decode_sides
from aqf_det.models.mc_dropout import channel_masks

Build = Callable[..., FlowDetector]
Batch = tuple[torch.Tensor, list[DetDataSample]]
QUANTILE = {"kind": "quantile"}


def test_mc_dropout_leaves_the_network_untouched_and_repeats_itself(
    build: Build, batch: Batch, predict: Any
) -> None:
    model = build(flow=QUANTILE, dropout=0.15, test={"mc_passes": 4})
    before = {k: v.clone() for k, v in model.state_dict().items()}
    first, second = predict(model, batch), predict(model, batch)
    assert not any(m.training for m in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.pred_instances.bbox_quantiles, b.pred_instances.bbox_quantiles)


def test_mc_dropout_is_a_mixture_of_thinned_networks(
    build: Build, batch: Batch, predict: Any
) -> None:
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


def test_mc_point_boxes_are_the_mean_over_passes(build: Build, batch: Batch, predict: Any) -> None:

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


def test_both_kinds_find_the_same_boxes_in_any_number_of_passes(
    build: Build, batch: Batch, predict: Any
) -> None:
    """The Gaussian and the flow with MC dropout: another distribution, not another detector."""
    for passes in (1, 3):
        test = {"mc_passes": passes}
        gaussian, flow = build(dropout=0.15, test=test), build(flow=QUANTILE, dropout=0.15)
        state = {k: v for k, v in gaussian.state_dict().items() if k != "bbox_head.signature"}
        flow.load_state_dict({**flow.state_dict(), **state})
        flow.bbox_head.test_cfg["mc_passes"] = passes
        for a, b in zip(predict(gaussian, batch), predict(flow, batch), strict=True):
            assert ("bbox_var_epistemic" in a.pred_instances) == (passes > 1)
            for field in ("bboxes", "scores", "labels"):
                assert torch.equal(a.pred_instances[field], b.pred_instances[field])


def test_passes_without_dropout_are_refused(build: Build, batch: Batch, predict: Any) -> None:
    with pytest.raises(ValueError, match="trained with dropout"):
        predict(build(test={"mc_passes": 10}), batch)
    with pytest.raises(ValueError, match="at least 1"):
        predict(build(test={"mc_passes": 0}), batch)
