"""The one-dimensional model and its distribution, as a user meets them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

from aqf_core import QuantileDistribution, QuantileFunction, make_transformer
from aqf_core.errors import ContextError, DomainError, LevelError, NonFiniteError, ShapeError

LEVELS = torch.tensor([0.05, 0.5, 0.95])


def model_and_data(direction: str = "quantile") -> tuple[QuantileFunction, Tensor, Tensor]:
    model = QuantileFunction("spline", context=3, direction=direction, hidden=(8,))
    return model, torch.randn(7), torch.randn(7, 3)


@pytest.mark.parametrize("direction", ["quantile", "cdf"])
def test_distribution_interface(direction: str) -> None:
    model, x, context = model_and_data(direction)
    dist = model(context)
    assert isinstance(dist, torch.distributions.Distribution)
    assert dist.batch_shape == (7,) and dist.event_shape == ()
    assert dist.sample((5,)).shape == model.sample(5, context).shape == (5, 7)
    assert model.sample((2, 3), context).shape == (2, 3, 7)
    assert torch.allclose(dist.cdf(dist.icdf(torch.full((7,), 0.3))), torch.tensor(0.3), atol=1e-5)
    assert torch.allclose(model.cdf(x, context), dist.cdf(x))
    assert torch.allclose(model.log_prob(x, context), dist.log_prob(x))
    assert torch.allclose(model.quantile(LEVELS[:, None], context), dist.quantiles(LEVELS).T)
    low, high = dist.interval(0.9)
    assert torch.allclose(torch.stack([low, high]), dist.icdf(LEVELS[[0, 2], None]))
    samples = dist.sample((20_000,))
    assert torch.allclose(samples.mean(0), dist.mean, atol=0.05)
    assert torch.allclose(samples.std(0), dist.stddev, atol=0.05)
    assert torch.allclose(dist.from_base(dist.to_base(x)), x, atol=1e-4)
    assert "RationalQuadraticSpline" in repr(dist)


@pytest.mark.parametrize("direction", ["quantile", "cdf"])
def test_reparametrised_samples_reach_every_parameter(direction: str) -> None:
    model, _, context = model_and_data(direction)
    model(context).rsample((50,)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_default_objective_follows_the_direction() -> None:
    for direction, objective in (("quantile", "quantile"), ("cdf", "crps")):
        model, x, context = model_and_data(direction)
        default = model.loss(x, context, levels="fixed")
        assert torch.equal(default, model.loss(x, context, objective, levels="fixed"))
    assert model.loss(x, context, reduction="none").shape == (7,)
    assert model.loss(x, context, "nll").isfinite()


def test_unconditional_model_and_broadcasting() -> None:
    model = QuantileFunction("spline")
    assert model().batch_shape == ()
    assert model.loss(torch.randn(11), reduction="none").shape == (11,)
    assert model.quantile(LEVELS).shape == (3,)
    conditional, _, context = model_and_data()
    assert conditional.loss(torch.randn(4, 7), context, reduction="none").shape == (4, 7)
    assert conditional(context[:, None]).batch_shape == (7, 1)


def test_scaling_makes_the_model_equivariant() -> None:
    x = torch.randn(1000, dtype=torch.float64) * 50 + 1000
    model = QuantileFunction("spline").double().fit_scaling(x)
    other = copy.deepcopy(model).fit_scaling(3 * x - 7)
    u = LEVELS.double()
    assert torch.allclose(other.quantile(u), 3 * model.quantile(u) - 7)
    fixed = {"levels": "fixed"}
    assert torch.allclose(other.loss(3 * x - 7, **fixed), model.loss(x, **fixed))
    assert (model.quantile(u) - torch.distributions.Normal(1000, 50).icdf(u)).abs().max() < 10


@pytest.mark.parametrize("direction", ["quantile", "cdf"])
@pytest.mark.parametrize("support", [(0.0, 1.0), (0.0, None), (None, 1.0)])
def test_bounded_outcomes_stay_inside(direction: str, support) -> None:
    model = QuantileFunction("spline", direction=direction, support=support)
    nn.init.normal_(model.conditioner.bias, std=2.0)
    dist = model()
    low = -float("inf") if support[0] is None else support[0]
    high = float("inf") if support[1] is None else support[1]
    q = dist.icdf(torch.tensor([0.0, 0.01, 0.5, 0.99, 1.0]))
    assert (q >= low).all() and (q <= high).all() and q.isfinite().all()
    assert dist.cdf(torch.tensor(-1e9)) < 1e-4 and dist.cdf(torch.tensor(1e9)) > 1 - 1e-4
    with pytest.raises(DomainError, match="support"):
        dist.log_prob(torch.tensor(-5.0 if support[0] is not None else 5.0))
    if support == (0.0, 1.0):
        nodes = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
        with torch.no_grad():
            density = model.double()().log_prob(nodes).exp()
        assert abs(density.mean() - 1) < 1e-3


def test_learns_a_heteroscedastic_normal() -> None:
    model = QuantileFunction("spline", context=1, hidden=(32,))
    context = torch.rand(4096, 1) * 2 - 1
    scale = (0.5 * context[:, 0]).exp()
    x = 5 + 3 * context[:, 0] + scale * torch.randn(4096)
    model.fit_scaling(x)
    steps = 400
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.02, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(4096, (256,))
        optimiser.zero_grad()
        model.loss(x[rows], context[rows]).backward()
        optimiser.step()
        schedule.step()
    grid = torch.linspace(-0.9, 0.9, 10)
    truth = torch.distributions.Normal(5 + 3 * grid, (0.5 * grid).exp())
    with torch.no_grad():
        error = model.quantile(LEVELS[:, None], grid[:, None]) - truth.icdf(LEVELS[:, None])
    assert error.abs().mean() < 0.12


def test_files_and_copies() -> None:
    model, x, context = model_and_data()
    model.fit_scaling(10 * x)
    expected = model.quantile(LEVELS[:, None], context)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded, _, _ = model_and_data()
    loaded.load_state_dict(torch.load(buffer))
    for other in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.quantile(LEVELS[:, None], context), expected)
    assert "spline" in repr(model).lower() and "direction='quantile'" in repr(model)


def test_autocast_runs_the_network_in_half_and_the_map_in_full_precision() -> None:
    model, x, context = model_and_data()
    full = model.loss(x, context, levels="fixed")
    with torch.autocast("cpu", torch.bfloat16):
        half = model.loss(x, context, levels="fixed")
        q = model.quantile(LEVELS[:, None], context)
    assert half.dtype == q.dtype == torch.float32
    assert torch.allclose(half, full, rtol=0.05)
    half.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_data_of_any_kind_are_converted() -> None:
    model, x, context = model_and_data()
    expected = model.loss(x, context, levels="fixed")
    other = model.loss(x.double(), context.double(), levels="fixed")
    assert other.dtype == torch.float32 and torch.allclose(other, expected)
    for kind in (torch.bool, torch.int64, torch.bfloat16):
        assert model.loss(x.to(kind), context.to(kind)).isfinite()
    model.bfloat16()
    assert model.loss(x, context).dtype == torch.float32
    assert model.quantile(LEVELS[:, None], context).dtype == torch.float32
    assert model.sample(context=context).shape == (7,)


def test_context_is_standardised_when_asked() -> None:
    model, x, context = model_and_data()
    plain = model.parameters_of(context)
    assert torch.equal(model.fit_scaling(x).parameters_of(context), plain)
    model.fit_scaling(x, 1e4 + 100 * context)
    standard = model.context_space.to_model(1e4 + 100 * context)[0]
    assert standard.abs().max() < 10
    direct = model.conditioner.parameters_of(standard).squeeze(-2)
    assert torch.allclose(model.parameters_of(1e4 + 100 * context), direct)


def test_per_example_gradients() -> None:
    model, x, context = model_and_data()
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor, context: Tensor) -> Tensor:
        class Loss(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self) -> Tensor:
                return self.model.loss(x, context, levels="fixed")

        named = {f"model.{name}": value for name, value in weights.items()}
        return torch.func.functional_call(Loss(), named, ())

    grads = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, context)
    model.loss(x, context, levels="fixed").backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(grads[name].mean(0), parameter.grad, atol=1e-5), name


def test_errors_say_what_is_wrong() -> None:
    model, x, context = model_and_data()
    with pytest.raises(ContextError, match="missing"):
        model()
    with pytest.raises(ContextError, match="unconditional"):
        QuantileFunction("affine").loss(x, context)
    with pytest.raises(ShapeError, match="broadcast"):
        model.loss(torch.randn(6), context)
    with pytest.raises(ShapeError, match=r"\(7, 1\) and context of shape \(7,\) would be paired"):
        model.loss(x.unsqueeze(-1), context)
    with pytest.raises(ShapeError, match="call quantiles"):
        model.quantile(LEVELS, context)
    with pytest.raises(TypeError, match="x must be a torch tensor"):
        model.loss(x.numpy(), context)
    with pytest.raises(NonFiniteError):
        model.loss(x * float("nan"), context)
    with pytest.raises(LevelError):
        model.quantile(torch.tensor(50.0), context)
    with pytest.raises(NonFiniteError):
        model.loss(x, context * float("inf"))
    with pytest.raises(TypeError, match="bins"):
        QuantileFunction(make_transformer("spline"), bins=4)


def test_distribution_of_given_parameters() -> None:
    t = make_transformer("spline")
    h = t.gaussian_params(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0]))
    dist = QuantileDistribution(t, h)
    normal = torch.distributions.Normal(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0]))
    x = torch.randn(4, 2)
    assert torch.allclose(dist.log_prob(x), normal.log_prob(x), atol=1e-4)
    assert torch.allclose(dist.cdf(x), normal.cdf(x), atol=1e-5)
    assert torch.allclose(dist.mean, normal.mean, atol=1e-3)
    assert torch.allclose(dist.stddev, normal.stddev, rtol=1e-3)
    expanded = dist.expand((5, 2))
    assert expanded.rsample().shape == (5, 2)
