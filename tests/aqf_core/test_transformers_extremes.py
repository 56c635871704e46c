"""Extreme but finite numbers never turn into NaN, neither in values nor in gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aqf_core.objectives import conditional_loss
from aqf_core.spaces import OutputSpace
from aqf_core.transformers import TRANSFORMERS, Transformer, make_transformer

every_transformer = pytest.mark.parametrize("name", sorted(TRANSFORMERS))
every_direction = pytest.mark.parametrize("direction", ["quantile", "cdf"])

magnitude = st.sampled_from([0.0, 1e-6, 1.0, 30.0, 1e3, 1e6])
seed = st.integers(0, 2**16)


def build(name: str, direction: str) -> Transformer:
    torch.manual_seed(0)
    return make_transformer(name, direction=direction)


def extreme_params(t: Transformer, size: float, loc: float, scale: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    h = size * torch.randn(4, t.n_params, generator=generator)
    h[:, 0] *= loc / max(size, 1.0)
    h[:, 1] = scale * torch.randn(4, generator=generator)
    return h.requires_grad_()


def assert_finite_with_gradient(out: Tensor, *inputs: Tensor) -> None:
    assert torch.isfinite(out).all()
    assert_gradient(out, *inputs)


def assert_gradient(out: Tensor, *inputs: Tensor) -> None:
    grads = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
    assert all(grad is None or not grad.isnan().any() for grad in grads)


@every_transformer
@every_direction
@settings(max_examples=15)
@given(size=magnitude, loc=magnitude, scale=st.sampled_from([0.0, 3.0, 1e6]), seed=seed)
def test_quantiles(
    name: str, direction: str, size: float, loc: float, scale: float, seed: int
) -> None:
    t = build(name, direction)
    h = extreme_params(t, size, loc, scale, seed)
    u = torch.tensor([0.0, 1e-6, 0.5, 1 - 1e-6, 1.0], requires_grad=True)
    q = t.quantile(u, h.unsqueeze(-2))
    assert_finite_with_gradient(q, u, h)
    assert (q.diff(dim=-1) >= -1e-5 * (1 + q.abs().amax(-1, keepdim=True))).all()


@every_transformer
@every_direction
@settings(max_examples=15)
@given(size=magnitude, x=magnitude, scale=st.sampled_from([0.0, 3.0, 1e6]), seed=seed)
def test_probabilities(
    name: str, direction: str, size: float, x: float, scale: float, seed: int
) -> None:
    t = build(name, direction)
    h = extreme_params(t, size, 1.0, scale, seed)
    y = torch.tensor([-x, 0.0, x], requires_grad=True)
    assert_finite_with_gradient(t.cdf(y, h.unsqueeze(-2)), y, h)
    z, log_slope = t.to_base_and_slope(y, h.unsqueeze(-2))
    assert_finite_with_gradient(z, y, h)
    assert torch.isfinite(log_slope).all()
    log_prob = t.log_prob(y, h.unsqueeze(-2))
    # -z^2 / 2 may exceed float32 a million scales away; it must not become NaN.
    assert not log_prob.isnan().any()
    assert (log_prob < 60).all()
    assert_gradient(log_prob.clamp(min=-1e30), y, h)


@every_transformer
@every_direction
@settings(max_examples=15)
@given(
    size=magnitude,
    x=magnitude,
    scale=st.sampled_from([0.0, 3.0, 1e6]),
    objective=st.sampled_from(["quantile", "crps"]),
    seed=seed,
)
def test_losses(
    name: str, direction: str, size: float, x: float, scale: float, objective: str, seed: int
) -> None:
    t = build(name, direction)
    h = extreme_params(t, size, 1.0, scale, seed)
    y = torch.tensor([-x, 0.0, x, 1.0])
    loss = conditional_loss(t, OutputSpace(), y, h, objective)
    assert_finite_with_gradient(loss, h)
    assert (loss >= -1e-4 * (1 + x)).all()


@every_transformer
@every_direction
@settings(max_examples=8)
@given(size=st.sampled_from([0.0, 1.0, 30.0]), seed=seed)
def test_losses_of_bounded_outcomes_on_their_bounds(
    name: str, direction: str, size: float, seed: int
) -> None:
    t = build(name, direction)
    h = extreme_params(t, size, 1.0, 1.0, seed)
    for support in ((0.0, 1.0), (0.0, None), (None, 1.0)):
        space = OutputSpace(support=support)
        x = torch.tensor([0.0, 1e-6, 0.5, 1.0])
        for objective in ("quantile", "crps", "nll"):
            assert_finite_with_gradient(conditional_loss(t, space, x, h, objective), h)
