"""Sampling in place gives what `from_base` gives, for every family."""

from __future__ import annotations

import pytest
import torch

from aqf_core.transformers import TRANSFORMERS, make_transformer


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(TRANSFORMERS))
@pytest.mark.parametrize("direction", ["quantile", "cdf"])
@pytest.mark.parametrize("batch", [(50,), (4, 9), ()])
@pytest.mark.parametrize("size", [0.3, 2.0])
def test_variables_are_replaced_one_by_one(
    name: str, direction: str, batch: tuple[int, ...], size: float
) -> None:
    torch.manual_seed(0)
    t = make_transformer(name, direction=direction).double()
    z = 2 * torch.randn(3, *batch, dtype=torch.float64)
    h = size * torch.randn(3, *batch, t.n_params, dtype=torch.float64)
    expected = [t.from_base(*pair) for pair in zip(z, h, strict=True)]
    untouched = z[1].clone()
    sample = t.sampler(z)
    for j in (2, 0):
        sample(j, h[j])
        torch.testing.assert_close(z[j], expected[j], rtol=1e-9, atol=1e-9)
    assert torch.equal(z[1], untouched)


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(TRANSFORMERS))
@pytest.mark.parametrize("samples", [7, 0])
def test_parameters_may_be_shared_by_samples(name: str, samples: int) -> None:
    t = make_transformer(name).double()
    z = torch.randn(2, samples, 5, dtype=torch.float64)
    h = torch.randn(5, t.n_params, dtype=torch.float64)
    expected = t.from_base(z[0], h.expand(samples, 5, -1))
    t.sampler(z)(0, h)
    torch.testing.assert_close(z[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["spline", "deep_sigmoid", "monotone_net", "affine"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e30])
def test_extreme_parameters_and_levels(name: str, size: float) -> None:
    """Beyond the knots, where sigmoids underflow, and where parameters reach their bounds."""
    torch.manual_seed(0)
    t = make_transformer(name)
    h = size * torch.randn(200, t.n_params)
    h[:, 0] = 0.0
    if name == "monotone_net":
        h[:, 2:-1] = h[:, 2:-1].clamp(-1e3, 1e3)
    z = torch.cat([torch.randn(100), torch.linspace(-6, 6, 100)]).unsqueeze(0)
    expected = t.from_base(z[0], h)
    assert torch.isfinite(expected).all()
    t.sampler(z)(0, h)
    torch.testing.assert_close(z[0], expected, rtol=2e-4, atol=1e-4)


@torch.no_grad()
def test_knots_of_the_spline_and_its_ends() -> None:
    """A point exactly on a knot belongs to the bin at its left, and the first one to no bin."""
    t = make_transformer("spline", bins=4, bound=2.0).double()
    h = torch.randn(t.n_params, dtype=torch.float64)
    h[2:4] = 0.0  # neither shifted nor stretched: knots at -2, -1, 0, 1, 2
    z = torch.tensor([-9.0, -2.0, -1.0, 0.0, 1.0, 2.0, 9.0], dtype=torch.float64).unsqueeze(0)
    expected = t.from_base(z[0], h.expand(7, -1))
    t.sampler(z)(0, h.expand(7, -1))
    torch.testing.assert_close(z[0], expected)
    assert (z.diff() > 0).all()
