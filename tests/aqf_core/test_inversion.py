"""The root finder: hard functions, implicit gradients, traced execution, clear failure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aqf_core.errors import DomainError
from aqf_core.inversion import invert_monotone


def cubic(x: Tensor) -> tuple[Tensor, Tensor]:
    return x**3 + 1e-3 * x, 3 * x**2 + 1e-3


def staircase(x: Tensor) -> tuple[Tensor, Tensor]:
    """Nearly flat plateaus between steep steps, where Newton's method alone diverges."""
    steps = torch.tensor([-2.0, 0.0, 3.0], dtype=x.dtype)
    wave = torch.tanh(200 * (x.unsqueeze(-1) - steps))
    return 1e-3 * x + wave.sum(-1), 1e-3 + (200 * (1 - wave * wave)).sum(-1)


@pytest.mark.parametrize("function", [cubic, staircase, lambda x: (x.sinh(), x.cosh())])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_solves_hard_functions(function, dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(200), torch.tensor([-7.9, -2.0, 0.0, 3.0, 7.9])]).to(dtype)
    target, slope = function(x)
    found = invert_monotone(function, target)
    eps = torch.finfo(dtype).eps
    error = (function(found)[0] - target).abs()
    assert (error <= 50 * eps * (1 + target.abs() + slope * x.abs())).all()


def test_bracket_is_widened_when_the_root_is_outside() -> None:
    target = torch.tensor([-1e6, 1e6], dtype=torch.float64)
    found = invert_monotone(lambda x: (2 * x, torch.full_like(x, 2.0)), target, -1.0, 1.0)
    assert torch.allclose(found, target / 2)
    # A bracket of no width at all is a valid guess, near or far.
    for guess in (0.0, 1e6):
        found = invert_monotone(lambda x: (2 * x, torch.full_like(x, 2.0)), target, guess, guess)
        assert torch.allclose(found, target / 2)


def test_target_outside_the_range_is_named() -> None:
    with pytest.raises(DomainError, match="outside its range"):
        invert_monotone(lambda x: (x.tanh(), 1 - x.tanh() ** 2 + 1e-30), torch.tensor([0.5, 2.0]))


def test_shapes_broadcast_against_parameters() -> None:
    slope = torch.tensor([1.0, 2.0, 4.0])
    found = invert_monotone(lambda x: (slope * x, slope.expand_as(slope * x)), torch.ones(5, 1))
    assert found.shape == (5, 3)
    assert torch.allclose(found, (1 / slope).expand(5, 3))


def test_implicit_gradients_against_finite_differences() -> None:
    def solve(target: Tensor, rate: Tensor) -> Tensor:
        return invert_monotone(
            lambda x: (x + rate * x**3, 1 + 3 * rate * x**2), target, tolerance=1e-15
        )

    target = torch.randn(5, dtype=torch.float64, requires_grad=True)
    rate = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(solve, (target, rate), eps=1e-6, atol=1e-6)
    assert torch.autograd.gradgradcheck(solve, (target, rate), eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("function", [cubic, staircase])
def test_traced_execution_agrees(function) -> None:
    target = function(torch.linspace(-4, 4, 33))[0]
    expected = invert_monotone(function, target)
    mapped = torch.func.vmap(lambda t: invert_monotone(function, t))(target)
    assert torch.allclose(function(mapped)[0], target, atol=1e-4)
    assert torch.allclose(mapped, expected, atol=1e-3)
    slopes = torch.func.vmap(torch.func.grad(lambda t: invert_monotone(cubic, t)))(target[4:8])
    x = invert_monotone(cubic, target[4:8])
    assert torch.allclose(slopes, 1 / cubic(x)[1], rtol=1e-3)
