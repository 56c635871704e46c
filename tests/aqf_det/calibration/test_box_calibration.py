"""The calibration of a head: what it repairs, and how it travels with the weights."""

from __future__ import annotations

import copy

import pytest
import torch

from aqf_core.errors import AQFError, LevelError, ShapeError, UnknownNameError
from aqf_core.metrics import calibration_mae_from_pit
from aqf_core.normal import base_to_level
from aqf_det.calibration import BoxCalibration, CalibrationMismatchError
from aqf_det.models import BoxDistribution, BoxFlow, FlowOptions

LEVELS = torch.arange(1, 100) / 100.0


def point_boxes(count: int, passes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    low = torch.rand(passes, count, 2) * 50
    mean = torch.cat([low, low + 60 + torch.rand(passes, count, 2) * 60], -1)
    return mean, 1 + torch.rand(passes, count, 4)


def calibrated(z: torch.Tensor, kind: str = "isotonic", **options: object) -> BoxCalibration:
    result = BoxCalibration()
    result.store(z, kind=kind, **options)  # type: ignore[arg-type]
    return result


@pytest.mark.parametrize("kind", ["isotonic", "spline", "conformal"])
def test_each_side_gets_the_distribution_of_its_errors(kind: str) -> None:
    """Errors that are biased and twice as large as predicted, differently on every side."""
    scale, shift = torch.tensor([2.0, 0.5, 1.0, 3.0]), torch.tensor([0.0, 1.0, -1.0, 0.0])
    calibration = calibrated(shift + scale * torch.randn(4000, 4), kind)
    mean, sigma = point_boxes(5)
    repaired = calibration.recalibrate(
        BoxDistribution.gaussian(mean, sigma), torch.full((5,), 50.0), ""
    )
    true = torch.distributions.Normal(mean[0] + shift * sigma[0], scale * sigma[0])
    expected = true.icdf(LEVELS[:, None, None]).movedim(0, 1)
    found = repaired.quantiles(LEVELS)
    distance = (found - expected).abs() / true.scale[:, None]
    assert float(distance[:, 4:-4].max()) < 0.15 and float(distance.mean()) < 0.04
    assert bool((found.diff(dim=1) >= 0).all())
    aleatoric, epistemic = repaired.variance_parts()
    torch.testing.assert_close(aleatoric.sqrt(), true.scale, rtol=0.1, atol=0)
    assert not bool(epistemic.any())
    samples = repaired.samples(4096)
    torch.testing.assert_close(samples.mean(1), true.mean, rtol=0, atol=0.6)
    torch.testing.assert_close(samples.std(1), true.stddev, rtol=0.1, atol=0)


def test_new_boxes_are_calibrated() -> None:
    """Miscalibrated Gaussians of different widths: the PIT of new boxes is uniform afterwards."""

    def errors(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, sigma = point_boxes(count)
        return mean, sigma, mean[0] + 1.7 * sigma[0] * (torch.randn(count, 4).exp() - 1)

    mean, sigma, truth = errors(3000)
    z = BoxDistribution.gaussian(mean, sigma).marginal().to_base(truth)
    calibration = calibrated(z)
    mean, sigma, truth = errors(2000)
    repaired = calibration.recalibrate(BoxDistribution.gaussian(mean, sigma), torch.zeros(2000), "")
    below = (truth[:, None] <= repaired.quantiles(LEVELS)).double().mean(0)
    before = calibration_mae_from_pit(base_to_level((truth - mean[0]) / sigma[0]))
    assert float(before) > 0.06
    assert float((below - LEVELS[:, None]).abs().mean()) < 0.02


def test_boxes_of_different_sizes_are_repaired_separately() -> None:
    z, sizes = torch.randn(2000, 4), torch.rand(2000) * 100
    small = sizes <= 50
    z[small] *= 4
    calibration = calibrated(z, sizes=sizes, edges=(50.0,))
    assert calibration.groups == 2
    mean, sigma = point_boxes(4)
    base = BoxDistribution.gaussian(mean, sigma)
    repaired = calibration.recalibrate(base, torch.tensor([20.0, 80.0, 50.0, 51.0]), "")
    spread = repaired.variance_parts()[0].sqrt() / sigma[0]
    torch.testing.assert_close(spread.mean(1), torch.tensor([4.0, 1.0, 4.0, 1.0]), rtol=0.1, atol=0)


@pytest.mark.parametrize("dependence", ["independent", "autoregressive"])
def test_mixtures_and_joint_flows_keep_their_structure(dependence: str) -> None:
    """Repaired samples follow the repaired quantiles and are valid boxes; variances split."""
    torch.manual_seed(1)
    flow = BoxFlow(3, FlowOptions.parse({"kind": "quantile", "dependence": dependence}))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        mean, sigma = point_boxes(6, passes=3)
        mean = mean[:1] + sigma * torch.randn(3, 1, 1)
        base = flow(torch.randn(3, 6, 3), mean, sigma)
        calibration = calibrated(0.3 + 2 * torch.randn(2000, 4))
        repaired = calibration.recalibrate(base, torch.zeros(6), "")
        quantiles, samples = repaired.quantiles(LEVELS), repaired.samples(1536)
        share = (samples[:, :, None] <= quantiles[:, None]).float().mean(1)
        expected = LEVELS[:, None].expand_as(share[0]).expand_as(share)
        torch.testing.assert_close(share, expected, atol=0.03, rtol=0)
        if dependence == "autoregressive":
            assert bool((samples[..., :2] < samples[..., 2:]).all())
        aleatoric, epistemic = repaired.variance_parts()
        torch.testing.assert_close((aleatoric + epistemic).sqrt(), samples.std(1), rtol=0.1, atol=0)
        old = base.variance_parts()
        torch.testing.assert_close(epistemic / aleatoric, old[1] / old[0])


def test_bounds_keep_the_order_of_their_meaning() -> None:
    calibration = calibrated(torch.randn(2000, 4))
    mean, sigma = point_boxes(5)
    base, sizes = BoxDistribution.gaussian(mean, sigma), torch.zeros(5)
    found = calibration.bounds(calibration.recalibrate(base, sizes, ""), sizes, 0.9)
    (low, high), (band_low, band_high) = found["interval"].unbind(1), found["band"].unbind(1)
    assert bool((band_low < low).all() and (low < high).all() and (high < band_high).all())
    outer, inner = found["outer"], found["inner"]
    assert bool((outer[:, :2] < inner[:, :2]).all() and (inner[:, 2:] < outer[:, 2:]).all())
    # One statement at a time needs less than both together.
    assert bool((outer[:, 2:] < band_high[:, 2:]).all() and (outer[:, :2] > band_low[:, :2]).all())
    # Where a box is smaller than its uncertainty nothing is certainly inside it.
    wide = BoxDistribution.gaussian(mean, 200 * sigma)
    inner = calibration.bounds(calibration.recalibrate(wide, sizes, ""), sizes, 0.9)["inner"]
    torch.testing.assert_close(inner[:, :2], inner[:, 2:])
    with pytest.raises(CalibrationMismatchError, match="needs a calibrated checkpoint"):
        calibration.bounds(base, sizes, 0.9)
    with pytest.raises(LevelError, match="inside"):
        calibration.bounds(calibration.recalibrate(base, sizes, ""), sizes, 90.0)


def test_weights_carry_the_calibration() -> None:
    calibration = calibrated(torch.randn(300, 4), "spline", settings="mc_passes=5")
    state = calibration.state_dict()
    other = calibrated(torch.randn(700, 4), sizes=torch.rand(700), edges=(0.5,))
    assert other.groups == 2
    other.load_state_dict(state)
    assert other.kind == "spline" and other.settings == "mc_passes=5" and other.groups == 1
    z = torch.randn(9, 4)
    for mine, theirs in zip(calibration.maps(), other.maps(), strict=True):
        torch.testing.assert_close(mine.to_base(z)[0], theirs.to_base(z)[0])
    twin = copy.deepcopy(other)
    twin.load_state_dict(BoxCalibration().state_dict())
    assert other.fitted and not twin.fitted and not twin.state_dict()


def test_no_boxes_give_empty_results() -> None:
    calibration = calibrated(torch.randn(300, 4))
    base = BoxDistribution.gaussian(torch.zeros(1, 0, 4), torch.ones(1, 0, 4))
    repaired = calibration.recalibrate(base, torch.zeros(0), "")
    assert repaired.quantiles(LEVELS).shape == (0, 99, 4)
    assert repaired.samples(7).shape == (0, 7, 4)
    assert repaired.variance_parts()[0].shape == (0, 4)
    assert calibration.bounds(repaired, torch.zeros(0), 0.9)["outer"].shape == (0, 4)


def test_bad_input_is_refused() -> None:
    calibration = BoxCalibration()
    with pytest.raises(ShapeError, match=r"\(n, 4\)"):
        calibration.store(torch.randn(30, 3))
    with pytest.raises(ShapeError, match="sizes of the boxes"):
        calibration.store(torch.randn(30, 4), edges=(32.0,))
    with pytest.raises(ShapeError, match=r"per group of sizes, got \[30, 0\]"):
        calibration.store(torch.randn(30, 4), torch.ones(30), edges=(32.0,))
    with pytest.raises(LevelError, match="ascend"):
        calibration.store(torch.randn(30, 4), torch.ones(30), edges=(96.0, 32.0))
    with pytest.raises(UnknownNameError, match="unknown recalibration 'platt'"):
        calibration.store(torch.randn(30, 4), kind="platt")
    assert not calibration.fitted
    with pytest.raises(AQFError, match="not calibrated"):
        calibration.maps()
    mean, sigma = point_boxes(2)
    with pytest.raises(CalibrationMismatchError, match=r"\[mc_passes=5\].*with \[\]"):
        calibrated(torch.randn(30, 4), "spline", settings="mc_passes=5").recalibrate(
            BoxDistribution.gaussian(mean, sigma), torch.zeros(2), ""
        )
