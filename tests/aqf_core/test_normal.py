"""Levels and base values agree with scipy, far into both tails, in value and gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

from aqf_core.normal import (
    base_to_level,
    level_to_base,
    log_base_to_level,
    log_level_to_base,
    random_level_to_base,
)

DTYPES = [(torch.float32, 2e-5), (torch.float64, 1e-11)]


@pytest.mark.parametrize("dtype, tolerance", DTYPES, ids=str)
def test_levels_of_base_values(dtype: torch.dtype, tolerance: float) -> None:
    z = torch.linspace(-12, 8, 401, dtype=dtype)
    expected = special.ndtr(z.double().numpy())
    # Rounding z itself moves the level by |z| N(z) / Phi(z) units: some hundred at z = -12.
    assert np.allclose(base_to_level(z).double(), expected, rtol=200 * torch.finfo(dtype).eps)
    logs = special.log_ndtr(z.double().numpy())
    assert np.allclose(log_base_to_level(z).double(), logs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype, tolerance", DTYPES, ids=str)
def test_base_values_of_levels(dtype: torch.dtype, tolerance: float) -> None:
    u = torch.tensor([1e-30, 1e-6, 0.01, 0.5, 0.99, 1 - 1e-6], dtype=dtype)
    expected = special.ndtri(u.double().numpy())
    assert np.allclose(level_to_base(u).double(), expected, rtol=tolerance, atol=tolerance)
    fast = random_level_to_base(u[1:])
    assert np.allclose(fast.double(), expected[1:], atol=0.02)
    logs = torch.tensor([-1e5, -700.0, -80.0, -20.0, -2.0, -0.7], dtype=dtype)
    found = log_level_to_base(logs).double().numpy()
    assert np.allclose(found, special.ndtri_exp(logs.double().numpy()), rtol=10 * tolerance)


def test_the_ends_are_finite_and_have_finite_gradients() -> None:
    for dtype in (torch.float32, torch.float64):
        u = torch.tensor([0.0, 1.0], dtype=dtype, requires_grad=True)
        z = level_to_base(u)
        (gradient,) = torch.autograd.grad(z.sum(), u)
        assert z.isfinite().all() and not gradient.isnan().any()
        assert random_level_to_base(u.detach()).isfinite().all()


def test_gradients() -> None:
    z = torch.linspace(-40, 5, 19, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_base_to_level, z)
    log_u = torch.tensor([-900.0, -100.0, -5.0, -0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_level_to_base, log_u)
