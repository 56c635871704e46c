"""Voting of suppressed candidates, and scores that count uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmdet.structures import DetDataSample

from aqf_core.errors import UnknownNameError
from aqf_det.models import BoxDistribution, BoxFlow, FlowDetector, FlowOptions
from aqf_det.models.prediction import Detections, rescored
from aqf_det.models.prediction_options import PredictionOptions
from aqf_det.models.voting import VOTING, vote, voters

Build = Callable[..., FlowDetector]
Batch = tuple[torch.Tensor, list[DetDataSample]]
LEVELS = torch.arange(1, 100) / 100.0
BOX = torch.tensor([10.0, 20.0, 60.0, 80.0])


def flow_boxes(
    boxes: torch.Tensor, passes: int = 1, dependence: str = "independent"
) -> BoxDistribution:
    """Skewed distributions around boxes (R, 4), different for each of them."""
    torch.manual_seed(3)
    flow = BoxFlow(3, FlowOptions.parse({"kind": "quantile", "dependence": dependence}))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        mean = boxes.expand(passes, *boxes.shape)
        return flow(torch.randn(passes, len(boxes), 3), mean, 1 + torch.rand(mean.shape))


@pytest.mark.parametrize("kind", VOTING)
@pytest.mark.parametrize("passes", [1, 3])
def test_identical_candidates_change_nothing(kind: str, passes: int) -> None:
    base = flow_boxes(BOX[None], passes).select(torch.zeros(4, dtype=torch.long))
    boxes, position = BOX.repeat(4, 1), torch.arange(4)[None]
    with torch.no_grad():
        found, voted = vote(kind, boxes, base, position, torch.rand(1, 4))
        torch.testing.assert_close(found, BOX[None])
        one = base.select(torch.zeros(1, dtype=torch.long))
        torch.testing.assert_close(
            voted.quantiles(LEVELS), one.quantiles(LEVELS), rtol=1e-4, atol=1e-2
        )
        for mine, theirs in zip(voted.variance_parts(), one.variance_parts(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(voted.samples(9), one.samples(9), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("kind", VOTING)
def test_sure_sides_win(kind: str) -> None:
    """The first box knows x1 ten times better, the second x2: each keeps what it knows."""
    boxes = torch.stack([BOX, BOX + 4])
    sigma = torch.tensor([[1.0, 1.0, 10.0, 1.0], [10.0, 1.0, 1.0, 1.0]])
    base = BoxDistribution.gaussian(boxes[None], sigma[None])
    position, closeness = torch.tensor([[0, 1]]), torch.tensor([[1.0, 1.0]])
    found, voted = vote(kind, boxes, base, position, closeness)
    expected = torch.tensor([[10 + 4 / 101, 22, 60 + 400 / 101, 82]])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(voted.quantiles(torch.tensor([0.5]))[:, 0], expected)
    spread = voted.variance_parts()[0].sqrt()[0]
    if kind == "variance":  # moved, not reshaped
        torch.testing.assert_close(spread, sigma[0])
    else:  # mean of the voters' deviations
        mean = torch.tensor([(100 + 10) / 101, 1.0, (10 + 100) / 101, 1.0])
        torch.testing.assert_close(spread, mean, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dependence", ["independent", "autoregressive"])
def test_averaged_quantiles_are_a_distribution(dependence: str) -> None:
    """Increasing quantiles, inverted by the CDF, followed by the samples."""
    boxes = BOX + torch.randn(6, 4)
    base = flow_boxes(boxes, 2, dependence)
    position = torch.tensor([[0, 1, 2], [3, 4, 5]])
    with torch.no_grad():
        _, voted = vote("quantile", boxes, base, position, torch.rand(2, 3))
        quantiles = voted.quantiles(LEVELS)
        assert bool((quantiles.diff(dim=1) > 0).all())
        level = voted.marginal().cdf(quantiles.movedim(1, 0))
        torch.testing.assert_close(level, LEVELS[:, None, None].expand_as(level), rtol=0, atol=2e-3)
        below = (voted.samples(2048)[:, :, None] <= quantiles[:, None]).float().mean(1)
        torch.testing.assert_close(
            below, LEVELS[:, None].expand_as(below[0]).expand_as(below), rtol=0, atol=0.03
        )
        again = voted.select(torch.tensor([1]))
        torch.testing.assert_close(again.quantiles(LEVELS), quantiles[1:], rtol=1e-4, atol=1e-2)
        if dependence == "independent":
            x = quantiles[:, 20:80:20].movedim(1, 0).clone().requires_grad_()
            with torch.enable_grad():
                (density,) = torch.autograd.grad(voted.marginal().cdf(x).sum(), x)
            torch.testing.assert_close(
                voted.marginal().log_prob(x.detach()).exp(), density, rtol=2e-2, atol=1e-4
            )
            each = base.select(position[0]).marginals
            assert each is not None and voted.marginals is not None
            # One pass of one box: the weighted mean of its voters' quantiles at the same level.
            parts = each.from_base(torch.linspace(-5, 5, 41)[:, None, None, None])[:, 0]
            mean = voted.marginals.from_base(torch.linspace(-5, 5, 41)[:, None, None, None])[
                :, 0, 0
            ]
            assert bool(
                (mean >= parts.amin(1) - 0.05).all() and (mean <= parts.amax(1) + 0.05).all()
            )


def test_voters_are_of_the_same_class_and_close() -> None:
    boxes = torch.stack([BOX, BOX, BOX + 1, BOX + 200, BOX])
    labels = torch.tensor([0, 1, 0, 0, 0])
    position, closeness = voters(boxes, labels, torch.tensor([4]), torch.arange(5), 0.025)
    assert position[0, 0] == 4 and closeness[0, 0] == 1.0
    votes = dict(zip(position[0].tolist(), closeness[0].tolist(), strict=True))
    assert votes[0] == 1.0 and 0.5 < votes[2] < 1 and votes[1] == 0 and votes[3] < 1e-9


@pytest.mark.parametrize("kind", VOTING)
def test_voting_in_a_detector(build: Build, batch: Batch, predict: Any, kind: str) -> None:
    model = build(flow={"kind": "quantile"}, dropout=0.15)
    plain = predict(model, batch)
    model.bbox_head.test_cfg["voting"] = kind
    voted = predict(model, batch)
    model.bbox_head.test_cfg["voting_width"] = 1e-6  # nobody is close enough to vote
    alone = predict(model, batch)
    for a, b, c in zip(plain, voted, alone, strict=True):
        a, b, c = a.pred_instances, b.pred_instances, c.pred_instances
        assert len(a) > 0
        assert torch.equal(a.scores, b.scores) and torch.equal(a.labels, b.labels)
        assert not torch.equal(a.bboxes, b.bboxes)
        assert bool((b.bbox_quantiles.diff(dim=1) > 0).all())
        torch.testing.assert_close(c.bboxes, a.bboxes, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(c.bbox_quantiles, a.bbox_quantiles, rtol=1e-4, atol=1e-2)
    model.bbox_head.test_cfg.update(voting_width=0.025, mc_passes=3, flip=True, n_samples=5)
    both = predict(model, batch)[0].pred_instances
    assert bool((both.bbox_quantiles.diff(dim=1) > 0).all()) and both.bbox_samples.shape[1] == 5
    model.bbox_head.test_cfg["score_thr"] = 0.999
    assert len(predict(model, batch)[0].pred_instances) == 0


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="'mean'; choose from variance, quantile"):
        PredictionOptions.parse({"voting": "mean"})
    with pytest.raises(ValueError, match="positive"):
        PredictionOptions.parse({"voting": "variance", "voting_width": 0.0})


def test_settings_name_what_changes_distributions() -> None:
    assert PredictionOptions.parse({"score_thr": 0.3, "rescore": True}).settings == ""
    options = {"mc_passes": 5, "flip": True, "ensemble": "a.pth", "voting": "quantile"}
    assert PredictionOptions.parse(options).settings == (
        "mc_passes=5, mc_seed=0, flip=True, members=2, voting=quantile, voting_width=0.025"
    )


# ------------------------------------------------------------------------- scores


def test_uncertain_boxes_lose_score() -> None:
    boxes = torch.stack([BOX, BOX + 100])
    sigma = torch.stack([torch.full((4,), 30.0), torch.full((4,), 0.5)])
    base = BoxDistribution.gaussian(boxes[None], sigma[None])
    found = rescored(Detections(boxes, torch.tensor([0.9, 0.8]), torch.tensor([3, 4]), base))
    share = [(0.5 / 50 + 0.5 / 60) / 2, (30 / 50 + 30 / 60) / 2]
    torch.testing.assert_close(
        found.scores, torch.tensor([0.8 * (1 - share[0]), 0.9 * (1 - share[1])])
    )
    assert found.labels.tolist() == [4, 3]
    torch.testing.assert_close(found.boxes, boxes.flip(0))
    torch.testing.assert_close(found.distribution.quantiles(LEVELS), base.quantiles(LEVELS).flip(0))
    vague = BoxDistribution.gaussian(boxes[None], 1000 * sigma[None])
    assert (
        float(rescored(Detections(boxes, torch.ones(2), torch.zeros(2), vague)).scores.max()) < 1e-3
    )


def test_rescoring_in_a_detector(build: Build, batch: Batch, predict: Any) -> None:
    plain = predict(build(flow={"kind": "quantile"}), batch)[0].pred_instances
    found = predict(build(flow={"kind": "quantile"}, test={"rescore": True}), batch)[
        0
    ].pred_instances
    assert len(plain) == len(found) and bool((found.scores.diff() <= 0).all())
    size = (plain.bboxes[:, 2:] - plain.bboxes[:, :2]).repeat(1, 2)
    factor = 1 - (plain.bbox_std / size).clamp(max=1).mean(-1)
    expected = (plain.scores * factor).sort(descending=True).values
    torch.testing.assert_close(found.scores, expected)
