"""One contract for every transformer in both directions: what a monotone map must do."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

from aqf_core.errors import ShapeError, UnknownNameError
from aqf_core.objectives import conditional_loss
from aqf_core.spaces import OutputSpace
from aqf_core.transformers import TRANSFORMERS, Transformer, make_transformer

IDENTITY_AT_ZERO = {"affine", "spline", "unconstrained", "deep_sigmoid"}
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}

every_transformer = pytest.mark.parametrize("name", sorted(TRANSFORMERS))
every_direction = pytest.mark.parametrize("direction", ["quantile", "cdf"])
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def build(name: str, direction: str, dtype: torch.dtype = torch.float64) -> Transformer:
    return make_transformer(name, direction=direction).to(dtype).requires_grad_(False)


def params(t: Transformer, n: int, size: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random parameters; location and scale stay moderate, shape parameters have the given size."""
    h = torch.randn(n, t.n_params, dtype=dtype)
    h[:, 2:] *= size
    return h


def levels(n: int, dtype: torch.dtype) -> Tensor:
    u = torch.rand(n, dtype=dtype).sort().values
    u[0], u[-1] = 1e-6, 1 - 1e-6
    return u


@every_transformer
@every_direction
def test_zero_parameters_are_standard_normal(name: str, direction: str) -> None:
    t = build(name, direction)
    u = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    z = torch.special.ndtri(u)
    error = (t.quantile(u, torch.zeros(t.n_params, dtype=torch.float64)) - z).abs().max()
    assert error < (1e-10 if name in IDENTITY_AT_ZERO else 0.2)


@every_transformer
@every_direction
@every_dtype
def test_quantiles_never_cross(name: str, direction: str, dtype: torch.dtype) -> None:
    t = build(name, direction, dtype)
    u = levels(1000, dtype)
    for size in (0.3, 3.0, 30.0, 1000.0):
        h = params(t, 6, size, dtype)
        q = t.quantile(u, h.unsqueeze(-2))
        assert torch.isfinite(q).all()
        # Rounding may move a value by a few units in the last place, never by more.
        assert (q.diff(dim=-1) >= -16 * EPS[dtype] * (1 + q.abs().amax(-1, keepdim=True))).all()


@every_transformer
@every_direction
@every_dtype
def test_cdf_never_decreases(name: str, direction: str, dtype: torch.dtype) -> None:
    t = build(name, direction, dtype)
    y = torch.cat([torch.linspace(-20, 20, 297), torch.tensor([-1e6, -1e3, 1e3, 1e6])])
    y = y.to(dtype).sort().values
    for size in (0.3, 3.0, 30.0, 1000.0):
        f = t.cdf(y, params(t, 6, size, dtype).unsqueeze(-2))
        assert (f >= 0).all() and (f <= 1).all()
        assert (f.diff(dim=-1) >= -64 * EPS[dtype]).all()


@every_transformer
@every_direction
@every_dtype
def test_round_trips(name: str, direction: str, dtype: torch.dtype) -> None:
    tolerance = 1e-4 if dtype == torch.float32 else 1e-8
    t = build(name, direction, dtype)
    h = params(t, 20, 1.0, dtype).unsqueeze(-2)
    u = levels(100, dtype)
    q = t.quantile(u, h)
    assert torch.allclose(t.cdf(q, h), u.expand_as(q), rtol=0, atol=tolerance)
    x = q[:, 5:-5]
    assert torch.allclose(t.quantile(t.cdf(x, h), h), x, rtol=tolerance, atol=tolerance)
    z = torch.linspace(-6, 6, 101, dtype=dtype)
    assert torch.allclose(t.to_base(t.from_base(z, h), h), z.expand(20, 101), atol=10 * tolerance)


@every_transformer
@every_direction
def test_round_trips_of_large_parameters(name: str, direction: str) -> None:
    """F(Q(u)) = u up to what rounding y to the nearest number may change."""
    t = build(name, direction)
    for size in (3.0, 30.0, 1000.0):
        h = params(t, 10, size).unsqueeze(-2)
        z = torch.linspace(-5, 5, 101, dtype=torch.float64)
        y, log_slope = t.from_base_and_slope(z, h)
        spread = y.abs().amax(-1, keepdim=True) + h[..., 0].abs() + 1.0
        rounding = 1e3 * EPS[torch.float64] * spread * (-log_slope).exp()
        # Where rounding moves z by much, the slope at z says nothing about the way there.
        clear = rounding < 1e-3
        assert clear.double().mean() > 0.7
        assert ((t.to_base(y, h) - z).abs() <= 1e-8 + 10 * rounding)[clear].all()


@every_transformer
@every_direction
def test_slopes_and_density_agree_with_autograd(name: str, direction: str) -> None:
    t = build(name, direction)
    h = params(t, 10).unsqueeze(-2)
    z = torch.linspace(-4, 4, 41, dtype=torch.float64).expand(10, 41).clone().requires_grad_()
    y, log_slope = t.from_base_and_slope(z, h)
    (slope,) = torch.autograd.grad(y.sum(), z)
    assert torch.allclose(slope.log(), log_slope, atol=1e-8)
    y = y.detach().requires_grad_()
    z2, log_slope2 = t.to_base_and_slope(y, h)
    (slope2,) = torch.autograd.grad(z2.sum(), y, retain_graph=True)
    assert torch.allclose(slope2.log(), log_slope2, atol=1e-8)
    (density,) = torch.autograd.grad(t.cdf(y, h).sum(), y)
    assert torch.allclose(density.log(), t.log_prob(y, h), atol=1e-6)


@every_transformer
@every_direction
def test_density_integrates_to_one(name: str, direction: str) -> None:
    t = build(name, direction)
    h = params(t, 4).unsqueeze(-2)
    n = 16_001 if t.closed_inverse else 1_501
    edges = t.from_base(torch.linspace(-7, 7, n, dtype=torch.float64), h)
    middle = 0.5 * (edges[:, 1:] + edges[:, :-1])
    total = (t.log_prob(middle, h).exp() * edges.diff(dim=-1)).sum(-1)
    assert torch.allclose(total, torch.ones_like(total), atol=2e-3)


@every_transformer
@every_direction
def test_gradients_against_finite_differences(name: str, direction: str) -> None:
    """Reparametrised samples and, where a direction needs the root finder, implicit gradients."""
    t = build(name, direction)
    h = params(t, 8).unsqueeze(-2)
    z = torch.randn(8, 5, dtype=torch.float64)
    y = t.from_base(z, h)
    for function, point in ((t.from_base, z), (t.to_base, y), (t.log_prob, y)):
        inputs = [point.clone().requires_grad_(), h.clone().requires_grad_()]
        grads = torch.autograd.grad(function(*inputs).sum(), inputs)
        steps = [torch.randn_like(point), torch.randn_like(h)]
        expected = sum((g * s).sum() for g, s in zip(grads, steps, strict=True))
        e = 1e-6
        ahead, behind = (
            function(point + sign * e * steps[0], h + sign * e * steps[1]).sum() for sign in (1, -1)
        )
        assert torch.allclose(expected, (ahead - behind) / (2 * e), rtol=1e-4, atol=1e-5)


@every_transformer
@every_direction
def test_crps_is_twice_the_quantile_loss(name: str, direction: str) -> None:
    """The same number from levels, from the CDF, and in closed form where there is one."""
    t = build(name, direction)
    h, y = params(t, 4, 0.7), torch.randn(4, dtype=torch.float64)
    # Levels that are dense in the tails: u = v^3 (10 - 15 v + 6 v^2) at midpoints v.
    v = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    u, weight = v**3 * (10 - 15 * v + 6 * v * v), 30 * v**2 * (1 - v) ** 2 / 4000
    error = y.unsqueeze(-1) - t.quantile(u, h.unsqueeze(-2))
    quantile_loss = (weight * torch.maximum(u * error, (u - 1) * error)).sum(-1)
    grid = torch.sinh(torch.linspace(-7, 7, 3001, dtype=torch.float64)) * 0.2
    grid = torch.cat([grid.expand(4, -1), y.unsqueeze(-1)], -1).sort(-1).values
    middle = 0.5 * (grid[:, 1:] + grid[:, :-1])
    step = (middle >= y.unsqueeze(-1)).double()
    distance = (t.cdf(middle, h.unsqueeze(-2)) - step).square() * grid.diff(dim=-1)
    assert torch.allclose(distance.sum(-1), 2 * quantile_loss, rtol=2e-3)
    exact = t.crps(y, h)
    assert (exact is not None) == (name in {"affine", "piecewise_linear"})
    if exact is not None:
        assert torch.allclose(exact, 2 * quantile_loss, rtol=1e-4)


@every_transformer
@every_direction
def test_any_layout_of_points_and_parameters(name: str, direction: str) -> None:
    t = build(name, direction)
    h, z = params(t, 6), torch.randn(4, 6, dtype=torch.float64)
    expected = torch.stack(
        [torch.stack([t.from_base(z[i, j], h[j]) for j in range(6)]) for i in range(4)]
    )
    samples_first = t.from_base(z, h)
    levels_last = t.from_base(z.T, h.unsqueeze(-2)).T
    feature_major = t.from_base(z, h.T.contiguous().T)
    shared = t.from_base(z[:, 0], h.unsqueeze(-2))
    assert torch.allclose(samples_first, expected)
    assert torch.allclose(levels_last, expected)
    assert torch.allclose(feature_major, expected)
    assert torch.allclose(shared[0], t.from_base(z[:, 0], h[0].expand(4, -1)))
    back = t.to_base(expected.reshape(2, 2, 6), h)
    assert torch.allclose(back, z.reshape(2, 2, 6), atol=1e-8)


@every_transformer
@every_direction
def test_half_precision_and_autocast_compute_in_float32(name: str, direction: str) -> None:
    t = build(name, direction, torch.float32)
    h, u = params(t, 5, 1.0, torch.float32).bfloat16(), torch.rand(5)
    expected = t.quantile(u, h.float())
    with torch.autocast("cpu", torch.bfloat16):
        q, f = t.quantile(u, h), t.cdf(expected, h)
        loss = conditional_loss(t, OutputSpace(), torch.zeros(5), h, "crps", "fixed")
    assert q.dtype == f.dtype == loss.dtype == torch.float32
    assert torch.equal(q, expected)
    assert torch.allclose(f, u, atol=1e-4)


@every_transformer
@every_direction
def test_copies_files_and_repr(name: str, direction: str) -> None:
    t = build(name, direction)
    h, u = params(t, 5), torch.rand(5, dtype=torch.float64)
    expected = t.quantile(u, h)
    buffer = io.BytesIO()
    torch.save(t.state_dict(), buffer)
    buffer.seek(0)
    loaded = build(name, direction)
    loaded.load_state_dict(torch.load(buffer))
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t)), loaded):
        assert torch.equal(other.quantile(u, h), expected)
    assert direction in repr(t) and type(t).__name__ in repr(t)


class Scores(nn.Module):
    """Loss and quantiles of a transformer as one module."""

    def __init__(self, transformer: Transformer) -> None:
        super().__init__()
        self.transformer = transformer
        self.space = OutputSpace()

    def forward(self, x: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        loss = conditional_loss(self.transformer, self.space, x, h, "quantile", "fixed")
        return loss, self.transformer.quantile(u, h)


def scored(name: str, direction: str) -> tuple[Scores, tuple[Tensor, Tensor, Tensor]]:
    t = build(name, direction, torch.float32)
    return Scores(t), (torch.randn(6), torch.rand(6), params(t, 6, 0.1, torch.float32))


@every_transformer
@every_direction
def test_per_example_gradients(name: str, direction: str) -> None:
    scores, (x, u, h) = scored(name, direction)
    for index in (0, 1):
        one = torch.func.grad(lambda h, x, u, i=index: scores(x, u, h)[i].sum())
        together = torch.func.vmap(one)(h, x, u)
        apart = torch.stack([one(h[i], x[i], u[i]) for i in range(6)])
        leaf = h.clone().requires_grad_()
        (plain,) = torch.autograd.grad(scores(x, u, leaf)[index].sum(), leaf)
        assert torch.allclose(together, apart, atol=1e-5)
        assert torch.allclose(together, plain, rtol=1e-3, atol=1e-4)


@every_transformer
def test_gaussian_parameters(name: str) -> None:
    t = build(name, "quantile")
    loc, scale = torch.tensor([-3.0, 100.0]).double(), torch.tensor([0.01, 50.0]).double()
    h = t.gaussian_params(loc, scale)
    assert torch.allclose(torch.stack(t.location_scale(h)), torch.stack([loc, scale]))
    if name in IDENTITY_AT_ZERO:
        u = torch.tensor([[0.1], [0.5], [0.99]], dtype=torch.float64)
        expected = torch.distributions.Normal(loc, scale).icdf(u)
        assert torch.allclose(t.quantile(u, h), expected)


@every_transformer
@every_direction
@every_dtype
def test_samples_are_the_same_with_and_without_gradient(
    name: str, direction: str, dtype: torch.dtype
) -> None:
    t = build(name, direction, dtype)
    h, z = params(t, 500, 1.0, dtype), 2 * torch.randn(500, dtype=dtype)
    expected = t.from_base(z, h)
    with torch.no_grad():
        sampled = t.from_base(z, h)
    tolerance = 100 * EPS[dtype]
    assert torch.allclose(sampled, expected, rtol=tolerance, atol=tolerance)


def test_errors_say_what_is_wrong() -> None:
    t = make_transformer("spline")
    with pytest.raises(ShapeError, match=rf"\(\.\.\., {t.n_params}\)"):
        t.quantile(torch.rand(3), torch.zeros(3, t.n_params - 1))
    with pytest.raises(UnknownNameError, match="quantile, cdf"):
        make_transformer("spline", direction="sideways")
    with pytest.raises(UnknownNameError, match="affine.*unconstrained"):
        make_transformer("splin")
    with pytest.raises(TypeError, match="bins"):
        make_transformer(t, bins=4)
    for name, options in (
        ("spline", {"bins": 3}),
        ("piecewise_linear", {"bound": 0.0}),
        ("unconstrained", {"bins": 7}),
        ("deep_sigmoid", {"layers": 0}),
        ("sigmoid_mixture", {"units": 0}),
        ("monotone_net", {"features": 0}),
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            make_transformer(name, **options)
    assert make_transformer(t) is t
