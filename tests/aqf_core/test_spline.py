"""The spline transformer: written-out gradients and its options."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aqf_core.losses import pinball_loss
from aqf_core.normal import level_to_base
from aqf_core.transformers import Transformer, make_transformer

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def params(t: Transformer, n: int) -> Tensor:
    return torch.randn(n, t.n_params, dtype=torch.float64)


def assert_same(one: Tensor, other: Tensor) -> None:
    """Equal up to rounding of the largest."""
    other = other.detach()
    tolerance = 1e3 * EPS[other.dtype]
    size = float(other.abs().max())
    torch.testing.assert_close(one.detach(), other, rtol=tolerance, atol=tolerance * size)


def test_second_derivatives_of_the_spline() -> None:
    t = make_transformer("spline").double()
    h = params(t, 2).requires_grad_()
    z = torch.randn(2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda h: t.from_base(z, h), h)


@pytest.mark.parametrize("bins", [2, 8, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_written_out_gradient_of_the_spline(bins: int, dtype: torch.dtype) -> None:
    t = make_transformer("spline", bins=bins).to(dtype)
    h = (2 * torch.randn(6, 3, 1, t.n_params)).to(dtype).requires_grad_()
    z = 3 * torch.randn(6, 3, 8).to(dtype)  # inside the knots and in both tails

    def parts(slope: bool) -> tuple[Tensor, ...]:
        value, _, loc, log_scale = t.standard_from_base(z, h, slope)  # a slope records everything
        return value, loc, log_scale

    fast, plain = parts(False), parts(True)
    grads = [torch.randn_like(part) for part in fast]
    fast_grad, plain_grad = (torch.autograd.grad(p, h, grads)[0] for p in (fast, plain))
    for one, other in zip((*fast, fast_grad), (*plain, plain_grad), strict=True):
        assert_same(one, other)


def test_written_out_gradient_of_the_spline_has_derivatives() -> None:
    t = make_transformer("spline").double()
    h = params(t, 2).unsqueeze(-2).requires_grad_()
    z = torch.randn(2, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h: t.from_base(z, h), h)
    assert torch.autograd.gradgradcheck(lambda h: t.from_base(z, h), h)


@pytest.mark.parametrize("bins", [2, 8, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_written_out_quantile_loss_of_the_spline(bins: int, dtype: torch.dtype) -> None:
    t = make_transformer("spline", bins=bins).to(dtype)
    h = (2 * torch.randn(6, 3, t.n_params)).to(dtype).requires_grad_()
    y = 3 * torch.randn(6, 3).to(dtype).requires_grad_()
    u = torch.rand(6, 3, 8).to(dtype)
    u[0, 0, :2] = torch.tensor([1e-6, 1 - 1e-6])
    z = level_to_base(u)
    plain = pinball_loss(t.from_base(z, h.unsqueeze(-2)), y.unsqueeze(-1), u, "none").mean(-1)
    fast = t.pinball(y, z, u, h)
    weights = torch.randn_like(plain)
    pairs = zip(*(torch.autograd.grad(p, (h, y), weights) for p in (fast, plain)), strict=True)
    for one, other in ((fast, plain), *pairs):
        assert_same(one, other)


def test_written_out_quantile_loss_of_the_spline_has_derivatives() -> None:
    t = make_transformer("spline").double()
    h, y = params(t, 2).requires_grad_(), torch.randn(2, dtype=torch.float64, requires_grad=True)
    u = torch.rand(2, 3, dtype=torch.float64)
    z = level_to_base(u)
    for inputs in ((h, y), (h, y.detach())):
        assert torch.autograd.gradcheck(lambda h, y: t.pinball(y, z, u, h), inputs)
        assert torch.autograd.gradgradcheck(lambda h, y: t.pinball(y, z, u, h), inputs)


@pytest.mark.parametrize("direction", ["quantile", "cdf"])
def test_spline_with_and_without_learned_widths(direction: str) -> None:
    for widths in (True, False):
        t = make_transformer("spline", direction=direction, learn_widths=widths, bins=6, bound=2.0)
        assert t.n_params == 4 + 6 + 7 + (6 if widths else 0)
        h, z = params(t.double(), 20).unsqueeze(-2), torch.linspace(-4, 4, 50).double()
        assert torch.allclose(t.to_base(t.from_base(z, h), h), z.expand(20, -1), atol=1e-8)
