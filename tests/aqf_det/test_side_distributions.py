"""Intervals, outer and inner boxes and region probabilities against known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aqf_core.errors import AQFError, DomainError, LevelError, NonFiniteError, ShapeError
from aqf_det.inference import FINE_LEVELS
from aqf_det.quantile_tables import check_open_levels
from aqf_det.side_distributions import SideDistributions

LEVELS = np.array(FINE_LEVELS)
MEAN = np.array([[20.0, 30.0, 60.0, 90.0], [5.0, 5.0, 8.0, 300.0]])
SIGMA = np.array([[1.0, 2.0, 3.0, 4.0], [0.2, 0.2, 0.2, 30.0]])


@pytest.fixture
def gaussian() -> SideDistributions:
    """Two boxes whose sides are Gaussian."""
    z = stats.norm.ppf(LEVELS)
    return SideDistributions(LEVELS, MEAN[:, None] + SIGMA[:, None] * z[:, None])


@pytest.fixture
def joint() -> SideDistributions:
    """One box that only moves as a whole: x1 and x2 shift together, so do y1 and y2."""
    rng = np.random.default_rng(0)
    shift = rng.normal(size=(1, 4000, 1))
    samples = MEAN[:1, None] + shift * np.array([3.0, 3.0, 3.0, 3.0])
    return SideDistributions(LEVELS, np.quantile(samples, LEVELS, axis=1).swapaxes(0, 1), samples)


def test_quantile_and_cdf_are_those_of_the_distribution(gaussian: SideDistributions) -> None:
    for level in (0.05, 0.3217, 0.9, 0.999):
        expected = MEAN + SIGMA * stats.norm.ppf(level)
        # Linear interpolation between levels 1/200 apart.
        np.testing.assert_allclose((gaussian.quantile(level) - expected) / SIGMA, 0, atol=2e-2)
        np.testing.assert_allclose(gaussian.cdf(expected), level, atol=1e-3)
    assert gaussian.quantile([0.2, 0.8]).shape == (2, 2, 4)


@given(st.floats(0.0002, 0.9998))
def test_cdf_inverts_quantile(level: float) -> None:
    values = np.sort(np.random.default_rng(1).gamma(2.0, size=(3, len(LEVELS), 4)), axis=1)
    sides = SideDistributions(LEVELS, values)
    np.testing.assert_allclose(sides.cdf(sides.quantile(level)), level, atol=1e-9)


def test_interval_is_central(gaussian: SideDistributions) -> None:
    low, high = gaussian.interval(0.9)
    np.testing.assert_allclose(low, MEAN - 1.6449 * SIGMA, atol=1e-3 * SIGMA.max())
    np.testing.assert_allclose(high, MEAN + 1.6449 * SIGMA, atol=1e-3 * SIGMA.max())


@pytest.mark.parametrize("credibility", [0.5, 0.9, 0.99])
def test_outer_and_inner_box_hold_their_promise(
    gaussian: SideDistributions, credibility: float
) -> None:
    rng = np.random.default_rng(0)
    drawn = MEAN[:, None] + SIGMA[:, None] * rng.normal(size=(2, 20000, 4))
    outer, inner = gaussian.outer_box(credibility), gaussian.inner_box(credibility)
    inside = (drawn[..., :2] >= outer[:, None, :2]) & (drawn[..., 2:] <= outer[:, None, 2:])
    holds = (drawn[..., :2] <= inner[:, None, :2]) & (drawn[..., 2:] >= inner[:, None, 2:])
    # Bonferroni promises at least the credibility; for independent sides it wastes a few percent.
    for share in (inside.all(-1).mean(1), holds.all(-1).mean(1)):
        assert (share >= credibility - 0.01).all()
        assert (share <= credibility + 0.09).all()


def test_boxes_grow_and_shrink_with_credibility(gaussian: SideDistributions) -> None:
    outward = np.array([-1, -1, 1, 1])
    small, large = gaussian.outer_box(0.5), gaussian.outer_box(0.95)
    assert ((large - small) * outward > 0).all()
    assert ((gaussian.inner_box(0.95) - gaussian.inner_box(0.5)) * outward < 0).all()


def test_inner_box_without_certain_area_is_empty_but_valid() -> None:
    z = stats.norm.ppf(LEVELS)[None, :, None]
    sides = SideDistributions(LEVELS, np.array([10.0, 10.0, 12.0, 40.0]) + 5 * z)
    box = sides.inner_box(0.95)[0]
    assert box[0] == box[2] == pytest.approx(11.0)
    assert box[1] < box[3]


def test_joint_samples_make_the_outer_box_exact(joint: SideDistributions) -> None:
    assert joint.samples is not None
    outer = joint.outer_box(0.8)[0]
    inside = (joint.samples[0, :, :2] >= outer[:2]) & (joint.samples[0, :, 2:] <= outer[2:])
    assert inside.all(-1).mean() == pytest.approx(0.8, abs=0.01)
    # All sides shift together, so the box needs 0.1 on either end instead of 0.2 / 4.
    bonferroni = SideDistributions(joint.levels, joint.values).outer_box(0.8)[0]
    assert (outer[:2] > bonferroni[:2]).all() and (outer[2:] < bonferroni[2:]).all()


def test_region_beside_the_box_is_reached_by_one_side(gaussian: SideDistributions) -> None:
    # Box 0 ends at x2 ~ N(60, 3); the region starts at 63, so the answer is P(x2 > 63).
    reach = gaussian.prob_reaches([63.0, 40.0, 200.0, 80.0])
    assert reach[0] == pytest.approx(stats.norm.sf(1.0), abs=1e-3)
    assert reach[1] == 0.0


def test_region_probabilities_agree_with_simulation_on_every_side() -> None:
    rng = np.random.default_rng(3)
    mean, sigma = np.array([40.0, 40.0, 60.0, 60.0]), np.array([4.0, 2.0, 5.0, 3.0])
    z = stats.norm.ppf(LEVELS)[None, :, None]
    sides = SideDistributions(LEVELS, mean + sigma * z)
    drawn = mean + sigma * rng.normal(size=(200_000, 4))
    regions = np.array(
        [[0, 0, 38, 100], [62, 0, 99, 99], [0, 62, 99, 99], [0, 0, 99, 39], [61, 61, 70, 70]], float
    )
    for region, reach in zip(regions, sides.prob_reaches(regions)[0], strict=True):
        hit = ((drawn[:, :2] < region[2:]) & (drawn[:, 2:] > region[:2])).all(-1).mean()
        assert reach == pytest.approx(hit, abs=5e-3)


def test_sides_of_one_axis_need_no_independence() -> None:
    """A narrow object that moves as a whole: multiplying its two sides would be wrong."""
    rng = np.random.default_rng(0)
    shift = rng.normal(size=50_000) * 10
    boxes = np.stack([50 + shift, 0 * shift, 52 + shift, 0 * shift + 10], -1)[None]
    values = np.quantile(boxes, LEVELS, axis=1).swapaxes(0, 1)
    region = [48.0, 0.0, 54.0, 10.0]
    truth = SideDistributions(LEVELS, values, boxes).prob_reaches(region)
    marginal = SideDistributions(LEVELS, values).prob_reaches(region)
    assert marginal == pytest.approx(truth, abs=5e-3)
    below = SideDistributions(LEVELS, values).cdf([[54.0, 0, 48.0, 0]])[0]
    assert abs(below[0] * (1 - below[2]) - truth[0]) > 0.05


def test_joint_samples_answer_where_axes_depend(joint: SideDistributions) -> None:
    region = [63.0, 93.0, 200.0, 200.0]
    # x2 > 63 and y2 > 93 are the same event here, of probability P(z > 1).
    assert joint.prob_reaches(region)[0] == pytest.approx(stats.norm.sf(1.0), abs=0.02)
    product = SideDistributions(joint.levels, joint.values).prob_reaches(region)[0]
    assert product == pytest.approx(stats.norm.sf(1.0) ** 2, abs=0.01)


def test_regions_may_be_half_planes(gaussian: SideDistributions) -> None:
    inf = np.inf
    regions = [[-inf, -inf, inf, inf], [60, -inf, inf, inf], [-inf, -inf, 0, inf]]
    np.testing.assert_allclose(gaussian.prob_reaches(regions)[0], [1, 0.5, 0], atol=1e-3)


def test_no_boxes_are_no_problem() -> None:
    sides = SideDistributions(LEVELS, np.empty((0, len(LEVELS), 4)))
    assert sides.quantile(0.5).shape == (0, 4)
    assert sides.outer_box(0.9).shape == sides.inner_box(0.9).shape == (0, 4)
    assert sides.prob_reaches([0, 0, 1, 1]).shape == (0,)


@pytest.mark.parametrize("level", [0, 1, -0.1, 95, float("nan"), "half", [], [[0.5]]])
def test_levels_outside_the_open_interval_are_refused(level: object) -> None:
    with pytest.raises(LevelError, match="level"):
        check_open_levels(level)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("levels", "values", "error"),
    [
        ([0.1, 0.9], np.zeros((2, 3, 4)), ShapeError),
        ([0.9, 0.1], np.zeros((2, 2, 4)), LevelError),
        ([0.1, 0.9], np.full((1, 2, 4), np.nan), NonFiniteError),
        ([0.1, 0.9], np.array([[[1.0] * 4, [0.0] * 4]]), DomainError),
    ],
)
def test_impossible_quantiles_are_refused(
    levels: list[float], values: np.ndarray, error: type[AQFError]
) -> None:
    with pytest.raises(error):
        SideDistributions(np.array(levels), values)


def test_wrong_questions_are_refused(gaussian: SideDistributions) -> None:
    with pytest.raises(LevelError, match="beyond the stored levels"):
        gaussian.quantile(0.00001)
    with pytest.raises(LevelError, match="coverage"):
        gaussian.interval(90)
    with pytest.raises(LevelError, match="credibility"):
        gaussian.outer_box(1.0)
    with pytest.raises(ShapeError, match="region"):
        gaussian.prob_reaches([1, 2, 3])
    with pytest.raises(DomainError, match="x1 < x2"):
        gaussian.prob_reaches([10, 0, 5, 5])
    with pytest.raises(NonFiniteError):
        gaussian.prob_reaches([0, 0, 5, float("nan")])
