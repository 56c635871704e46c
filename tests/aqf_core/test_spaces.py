"""The output space is an exact monotone bijection and its fit survives hostile data."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import biject_to

from aqf_core.errors import DomainError, NonFiniteError, ShapeError
from aqf_core.spaces import OutputSpace, Support

SUPPORTS: list[Support | None] = [
    None,
    (0.0, None),
    (-math.inf, 5.0),
    (-2.0, 3.0),
    (1e5, 1.00001e5),
]


def _inside(space: OutputSpace, n: int = 200) -> torch.Tensor:
    low, high = max(space.low, -50.0), min(space.high, 50.0 if space.high > 50 else space.high)
    high = space.high if math.isfinite(space.high) else 50.0
    t = torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return low + (high - low) * (0.001 + 0.998 * t)


@pytest.mark.parametrize("support", SUPPORTS)
def test_constraint_is_closed_and_has_a_bijection(support: Support | None) -> None:
    space = OutputSpace(2, support)
    constraint = space.constraint
    assert constraint.check(_inside(space)).all()
    for bound in (space.low, space.high):
        if math.isfinite(bound):
            assert constraint.check(torch.tensor(bound))
            outwards = math.inf if bound == space.high else -math.inf
            assert not constraint.check(torch.tensor(bound).nextafter(torch.tensor(outwards)))
    inside = biject_to(constraint)(torch.randn(50))
    assert torch.isfinite(inside).all() and constraint.check(inside).all()


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("fitted", [False, True])
def test_bijection_with_exact_slope(support: Support | None, fitted: bool) -> None:
    space = OutputSpace(2, support).double()
    x = _inside(space).requires_grad_()
    if fitted:
        space.fit(x)
    y, log_slope = space.to_model(x)
    assert torch.allclose(space.to_data(y), x, rtol=1e-10, atol=1e-10)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(log_slope, slope.log(), atol=1e-9)
    order = x[:, 0].argsort()
    assert (y[order, 0].diff() > 0).all()
    if fitted:
        assert y.median(0).values.abs().max() < 0.1
        assert 0.3 < y.std() < 3


@pytest.mark.parametrize("support", SUPPORTS)
def test_one_feature_at_a_time_agrees(support: Support | None) -> None:
    space = OutputSpace(2, support)
    x = _inside(space).float()
    space.fit(x)
    y, log_slope = space.to_model(x)
    for j in range(2):
        y_j, log_slope_j = space.to_model(x[:, j], feature=j)
        # Not bit for bit: vector registers take a column of its own up differently.
        torch.testing.assert_close(y_j, y[:, j])
        torch.testing.assert_close(log_slope_j, log_slope[:, j])
        torch.testing.assert_close(space.to_data(y_j, feature=j), space.to_data(y)[:, j])


def test_scalar_space_takes_any_shape() -> None:
    space = OutputSpace(support=(0.0, None)).fit(torch.rand(3, 4) * 10)
    assert space.loc.shape == ()
    x = torch.tensor(2.0)
    assert space.to_data(space.to_model(x)[0]) == pytest.approx(2.0)
    assert space.to_model(torch.ones(2, 3, 4))[0].shape == (2, 3, 4)


def test_bounds_are_allowed_and_outside_is_an_error() -> None:
    space = OutputSpace(1, support=(0.0, 1.0))
    y, log_slope = space.to_model(torch.tensor([[0.0], [1.0]]))
    assert torch.isfinite(y).all() and torch.isfinite(log_slope).all()
    assert torch.allclose(space.to_data(y), torch.tensor([[0.0], [1.0]]), atol=1e-5)
    with pytest.raises(DomainError, match=r"1 of 2 values lie outside the support \[0, 1\]"):
        space.to_model(torch.tensor([[0.5], [1.01]]))
    with pytest.raises(DomainError):
        OutputSpace(1, support=(0.0, 1.0)).fit(torch.tensor([[-1.0]]))


@pytest.mark.parametrize("support", [(0.0, None), (None, 0.0), (0.0, 1.0)])
def test_gradients_stay_finite_far_out(support: Support) -> None:
    space = OutputSpace(support=support)
    y = torch.tensor([-1e6, -100.0, 0.0, 100.0, 1e6], requires_grad=True)
    x = space.to_data(y)
    x.sum().backward()
    assert torch.isfinite(x).all() and y.grad is not None and torch.isfinite(y.grad).all()
    assert (x.detach() >= space.low).all() and (x.detach() <= space.high).all()


def test_fit_ignores_outliers_and_constant_columns() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 4, generator=generator)
    x[:50, 0] = 1e9  # 5 % outliers
    x[:, 1] = 7.0  # constant
    x[:, 2] = 1e6 + 1e-3 * x[:, 2]  # constant up to rounding
    x[:, 3] = (x[:, 3] > 1.5).float()  # 93 % zeros
    space = OutputSpace(4).fit(x)
    assert space.loc[0].abs() < 0.2 and 0.8 < space.scale[0] < 1.3
    assert space.loc[1] == 7 and space.scale[1] == 1
    assert space.scale[2] == 1
    assert 0.05 < space.scale[3] <= 1
    assert torch.equal(space.unit, space.scale)


def test_fit_ignores_an_atom_on_the_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    positive = torch.rand(400, 1, generator=generator) + 1
    x = torch.cat([torch.zeros(600, 1), positive])  # like solar power at night
    space = OutputSpace(1, support=(0.0, None)).fit(x)
    y, _ = space.to_model(positive)
    assert y.abs().max() < 3


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
@settings(max_examples=60, deadline=None)
def test_fit_is_always_usable(values: list[float], factor: float) -> None:
    x = torch.tensor(values).unsqueeze(1) * factor
    space = OutputSpace(1).fit(x)
    y, log_slope = space.to_model(x)
    assert (space.scale > 0).all() and torch.isfinite(space.scale).all()
    assert torch.isfinite(y).all() and torch.isfinite(log_slope).all()
    assert torch.allclose(space.to_data(y), x, rtol=1e-4, atol=float(x.abs().max()) * 1e-5 + 1e-30)


def test_errors() -> None:
    with pytest.raises(DomainError, match="low < high"):
        OutputSpace(1, support=(1.0, 1.0))
    with pytest.raises(ShapeError):
        OutputSpace(0)
    space = OutputSpace(2)
    with pytest.raises(ShapeError, match=r"\(\.\.\., 2\)"):
        space.to_model(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"\(\.\.\., 2\)"):
        space.fit(torch.zeros(4, 3))
    with pytest.raises(ShapeError, match="empty"):
        space.fit(torch.zeros(0, 2))
    with pytest.raises(NonFiniteError):
        space.fit(torch.tensor([[torch.nan, 0.0]]))


def test_state_survives_save_copy_and_pickle() -> None:
    space = OutputSpace(2, support=(0.0, None)).fit(torch.rand(50, 2))
    other = OutputSpace(2, support=(0.0, None))
    other.load_state_dict(space.state_dict())
    for clone in (other, copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert torch.equal(clone.to_data(torch.ones(1, 2)), space.to_data(torch.ones(1, 2)))
    assert "support=(0, inf)" in repr(space)


def test_compiles_as_one_graph() -> None:
    space = OutputSpace(2, support=(0.0, 1.0))
    x = torch.rand(5, 2)
    compiled = torch.compile(
        lambda t: space.to_data(space.to_model(t)[0]), fullgraph=True, backend="aot_eager"
    )
    assert torch.allclose(compiled(x), x, atol=1e-5)
