"""One contract for every transformer x conditioner x direction."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import aqf_core.inversion
from aqf_core import CONDITIONERS, AutoregressiveQuantileFlow
from aqf_core.transformers import TRANSFORMERS, Direction

DIRECTIONS: tuple[Direction, ...] = ("quantile", "cdf")
PRODUCT = [
    (t, c, d) for t in sorted(TRANSFORMERS) for c in sorted(CONDITIONERS) for d in DIRECTIONS
]

# Every transformer with the default conditioner and every conditioner with the default transformer,
# for what is slow to check and concerns the parts one by one.
PARTS = [case for case in PRODUCT if case[0] == "spline" or case[1] == "masked_mlp"]

contract = pytest.mark.parametrize(("transformer", "conditioner", "direction"), PRODUCT)
each_part = pytest.mark.parametrize(("transformer", "conditioner", "direction"), PARTS)


def make(
    transformer: str,
    conditioner: str,
    direction: Direction,
    dtype: torch.dtype = torch.float64,
    features: int = 3,
) -> AutoregressiveQuantileFlow:
    """A small flow whose weights are far from their initial values."""
    torch.manual_seed(0)
    shape = (2, 1, features - 1) if conditioner == "pixelcnn" else (features,)
    options = {"order": "random"} if conditioner in ("masked_mlp", "recurrent") else {}
    flow = AutoregressiveQuantileFlow(
        shape, 2, transformer, conditioner, (8,), direction, conditioner_options=options
    )
    with torch.no_grad():
        for parameter in flow.conditioner.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return flow.to(dtype)


def data(flow: AutoregressiveQuantileFlow, n: int = 6) -> tuple[Tensor, Tensor]:
    """Data from the flow itself, shape (n, *event_shape), and their context."""
    like = flow.space.loc
    context = torch.randn(n, 2).to(like)
    return flow.sample(context=context), context


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of the root finder, traced or not: others only repeat the same piece of graph."""
    steps = dict.fromkeys(aqf_core.inversion.TRACED_ITERATIONS, 2)
    monkeypatch.setattr(aqf_core.inversion, "TRACED_ITERATIONS", steps)
    monkeypatch.setattr(aqf_core.inversion, "MAX_ITERATIONS", 2)


@contract
def test_quantiles_never_cross(transformer: str, conditioner: str, direction: Direction) -> None:
    flow = make(transformer, conditioner, direction)
    x, context = data(flow)
    h = flow.conditioner(x.reshape(6, -1), context).unsqueeze(-2)
    ends = torch.tensor([1e-6, 1 - 1e-6], dtype=torch.float64)
    u = torch.cat([torch.rand(998, dtype=torch.float64), ends]).sort().values
    q = flow.transformer.quantile(u.expand(*h.shape[:-2], -1), h)
    assert (q.diff(dim=-1) > 0).all()
    flow.float()
    q = flow.transformer.quantile(u.float().expand(*h.shape[:-2], -1), h.float())
    gap = 1e-5 * (1 + q[..., 1:].abs())  # rounding of the root finder
    assert (q.diff(dim=-1) > -gap).all()


@contract
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-8)], ids=["f32", "f64"]
)
def test_invertible(
    transformer: str,
    conditioner: str,
    direction: Direction,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    flow = make(transformer, conditioner, direction, dtype)
    x, context = data(flow)
    with torch.no_grad():
        close = {"atol": tolerance, "rtol": tolerance}
        torch.testing.assert_close(flow.quantile(flow.cdf(x, context), context), x, **close)
        torch.testing.assert_close(flow.from_base(flow.to_base(x, context), context), x, **close)
        u = 0.001 + 0.998 * torch.rand_like(x)
        torch.testing.assert_close(flow.cdf(flow.quantile(u, context), context), u, **close)


@contract
def test_density_is_the_jacobian(transformer: str, conditioner: str, direction: Direction) -> None:
    flow = make(transformer, conditioner, direction)
    x, context = data(flow, 2)
    standard = torch.distributions.Normal(0.0, 1.0)
    for xi, ci in zip(x, context, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v, c=ci: flow.to_base(v, c), xi)
        jacobian = jacobian.reshape(flow.features, flow.features)
        expected = standard.log_prob(flow.to_base(xi, ci)).sum() + jacobian.slogdet().logabsdet
        torch.testing.assert_close(flow.log_prob(xi, ci), expected, atol=1e-6, rtol=1e-6)


@contract
def test_density_integrates_to_one(
    transformer: str, conditioner: str, direction: Direction
) -> None:
    """The joint density of two variables, summed over cells of about equal probability."""
    flow = make(transformer, conditioner, direction, features=2)
    first, second = flow.conditioner.order
    # Families that need root finding are smooth, the others may have jumps in their density.
    cells, tolerance = (100, 0.03) if flow.transformer.closed_inverse else (50, 1e-3)
    z = torch.linspace(-5, 5, cells + 1, dtype=torch.float64)
    context = torch.randn(2, dtype=torch.float64)

    def at(z_first: Tensor, z_second: Tensor) -> Tensor:
        both = torch.stack([z_first, z_second] if first == 0 else [z_second, z_first], -1)
        x = flow.from_base(both.unflatten(-1, flow.event_shape), context)
        return x.flatten(-len(flow.event_shape))

    with torch.no_grad():
        edges = at(z, torch.zeros_like(z))[:, first]
        inner = at(0.5 * (z[1:] + z[:-1]).unsqueeze(-1).expand(-1, cells + 1), z.expand(cells, -1))
        middle = 0.5 * (inner[:, 1:] + inner[:, :-1])
        density = flow.log_prob(middle.unflatten(-1, flow.event_shape), context).exp()
        area = edges.diff().unsqueeze(-1) * inner[..., second].diff(dim=-1)
    assert abs((density * area).sum() - 1) < tolerance


@contract
def test_incremental_sampling_equals_one_pass_per_variable(
    transformer: str, conditioner: str, direction: Direction
) -> None:
    flow = make(transformer, conditioner, direction, torch.float32)
    z = torch.randn(5, flow.features)
    context = torch.randn(5, 2)
    y = torch.zeros_like(z)
    with torch.no_grad():
        for j in flow.conditioner.order:
            h = flow.conditioner(y, context)
            y[:, j] = flow.transformer.from_base(z[:, j], h[:, j])
        fast = flow.from_base(z.reshape(5, *flow.event_shape), context).reshape(5, -1)
    torch.testing.assert_close(fast, y, atol=1e-5, rtol=1e-5)
    recorded = flow.from_base(z.reshape(5, *flow.event_shape), context).reshape(5, -1)
    torch.testing.assert_close(recorded, y, atol=1e-5, rtol=1e-5)


@contract
def test_gradients_match_finite_differences(
    transformer: str, conditioner: str, direction: Direction
) -> None:
    """Samples, levels and densities; one of the directions has implicit gradients."""
    flow = make(transformer, conditioner, direction)
    x, context = data(flow, 4)
    parameters = list(flow.parameters())
    step = [1e-6 * torch.randn_like(p) for p in parameters]

    def values() -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        sample = flow.rsample(5, context, generator).square().sum().sqrt()
        return [sample, flow.cdf(x, context).sum(), flow.log_prob(x, context).sum()]

    slopes = []
    for value in values():
        gradients = torch.autograd.grad(value, parameters, materialize_grads=True)
        slopes.append(sum((g * s).sum() for g, s in zip(gradients, step, strict=True)))
    with torch.no_grad():
        shifted = []
        for sign in (1, -1):
            for p, s in zip(parameters, step, strict=True):
                p.add_(sign * s)
            shifted.append(torch.stack(values()))
            for p, s in zip(parameters, step, strict=True):
                p.sub_(sign * s)
    expected = (shifted[0] - shifted[1]) / 2
    torch.testing.assert_close(torch.stack(slopes), expected, rtol=1e-3, atol=1e-9)


@contract
def test_survives_saving_copying_and_printing(
    transformer: str, conditioner: str, direction: Direction
) -> None:
    flow = make(transformer, conditioner, direction)
    flow.fit_scaling(3.0 * torch.randn(20, *flow.event_shape) + 1.0)
    x, context = data(flow)
    expected = flow.log_prob(x, context)
    buffer = io.BytesIO()
    torch.save(flow.state_dict(), buffer)
    buffer.seek(0)
    loaded = make(transformer, conditioner, direction)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    for other in (loaded, copy.deepcopy(flow), pickle.loads(pickle.dumps(flow))):
        assert torch.equal(other.log_prob(x, context), expected)
    text = repr(flow)
    assert type(flow.transformer).__name__ in text
    assert type(flow.conditioner).__name__ in text
    assert "context=2" in text


@contract
def test_gradients_per_sample(transformer: str, conditioner: str, direction: Direction) -> None:
    flow = make(transformer, conditioner, direction)
    x, context = data(flow, 3)
    parameters = dict(flow.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor, context: Tensor) -> Tensor:
        module = Score(flow)
        named = {f"flow.{name}": value for name, value in parameters.items()}
        return functional_call(module, named, (x, context))

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, context)
    mean = flow.loss(x, context, levels="fixed")
    expected = torch.autograd.grad(mean, list(parameters.values()), allow_unused=True)
    for (name, values), whole in zip(each.items(), expected, strict=True):
        whole = torch.zeros_like(parameters[name]) if whole is None else whole
        torch.testing.assert_close(values.mean(0), whole, msg=lambda m, n=name: f"{n}: {m}")


@each_part
@pytest.mark.usefixtures("short_search")
def test_runs_where_its_weights_are(
    transformer: str, conditioner: str, direction: Direction
) -> None:
    """On the device "meta" a tensor that was left on the CPU is an error, as it is on a GPU."""
    flow = make(transformer, conditioner, direction, torch.float32).to("meta")
    context = torch.empty(6, 2, device="meta")
    x = torch.empty(6, *flow.event_shape, device="meta")
    results = [flow.loss(x, context, objective) for objective in ("quantile", "nll", "energy")]
    results += [flow.cdf(x, context), flow.quantile(x, context), flow.sample(2, context)]
    results += [flow(context).mean, *flow(context).interval(0.9), flow.crps(x, context)]
    assert all(result.is_meta for result in results)


# Tracing -------------------------------------------------------------------------------------


class Score(nn.Module):
    """The loss of a flow, as a module without randomness."""

    def __init__(self, flow: AutoregressiveQuantileFlow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.flow.loss(x, context, levels="fixed")


class ScoreAndSample(Score):
    """Loss and samples in one trace."""

    def forward(self, x: Tensor, context: Tensor) -> Any:
        return self.flow.loss(x, context, levels="fixed"), self.flow.sample(2, context)


class ScoreSampleAndQuantile(Score):
    """Loss, samples and quantiles in one trace."""

    def forward(self, x: Tensor, context: Tensor) -> Any:
        quantiles = self.flow.quantile(torch.sigmoid(x), context)
        loss = self.flow.loss(x, context, levels="fixed")
        return loss, self.flow.sample(2, context), quantiles


# Tracing calls millions of functions, and coverage doubles the time of each; what they run through
# is covered by the tests above.
traced = pytest.mark.no_cover


def check_traced(run: Callable[..., Any], flow: AutoregressiveQuantileFlow, batch: int = 4) -> None:
    x, context = data(flow, batch)
    loss, sample, *rest = run(x, context)
    with torch.no_grad():
        torch.testing.assert_close(loss.detach(), flow.loss(x, context, levels="fixed"))
        assert sample.shape == (2, batch, *flow.event_shape)
        assert torch.isfinite(sample).all() and not torch.equal(sample[0], sample[1])
        for quantiles in rest:
            expected = flow.quantile(torch.sigmoid(x), context)
            torch.testing.assert_close(quantiles.detach(), expected)


@contract
@pytest.mark.usefixtures("short_search")
@traced
def test_compiles_as_one_graph(transformer: str, conditioner: str, direction: Direction) -> None:
    flow = make(transformer, conditioner, direction, features=2)
    torch._dynamo.reset()
    # Tracing the backward pass, too, takes twice the time.
    backend = "aot_eager" if (transformer, conditioner, direction) in PARTS else "eager"
    compiled = torch.compile(ScoreAndSample(flow), fullgraph=True, backend=backend)
    check_traced(compiled, flow)
    x, context = data(flow, 4)
    parameters = list(flow.parameters())
    loss = flow.loss(x, context, levels="fixed")
    expected = torch.autograd.grad(loss, parameters, materialize_grads=True)
    actual = torch.autograd.grad(compiled(x, context)[0], parameters, materialize_grads=True)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)


@contract
@pytest.mark.usefixtures("short_search")
@traced
def test_exports(transformer: str, conditioner: str, direction: Direction) -> None:
    flow = make(transformer, conditioner, direction, features=2)
    program = torch.export.export(ScoreSampleAndQuantile(flow), data(flow, 4))
    check_traced(program.module(), flow)


@pytest.mark.parametrize("conditioner", sorted(CONDITIONERS))
@traced
def test_exports_for_batches_of_any_size(conditioner: str) -> None:
    flow = make("spline", conditioner, "quantile", features=2)
    batch = torch.export.Dim("batch")
    dynamic = {"x": {0: batch}, "context": {0: batch}}
    module = ScoreSampleAndQuantile(flow)
    program = torch.export.export(module, data(flow, 4), dynamic_shapes=dynamic)
    check_traced(program.module(), flow, batch=7)


@traced
def test_compiles_for_batches_of_any_size() -> None:
    """With random levels, as in training: the last batch of an epoch may be smaller."""
    flow = make("spline", "masked_mlp", "quantile", torch.float32)
    torch._dynamo.reset()
    loss = torch.compile(flow.loss, fullgraph=True, backend="eager", dynamic=True)
    for n in (64, 37):
        x, context = data(flow, n)
        torch.testing.assert_close(loss(x, context), flow.loss(x, context), rtol=0.2, atol=0.05)


@pytest.mark.slow
@traced
def test_default_flow_compiles_to_machine_code() -> None:
    flow = make("spline", "masked_mlp", "quantile", torch.float32, features=2)
    torch._dynamo.reset()
    check_traced(torch.compile(ScoreAndSample(flow), fullgraph=True), flow)
    random_levels = torch.compile(lambda x, c: flow.loss(x, c), fullgraph=True)
    x, context = data(flow, 4)
    torch.testing.assert_close(random_levels(x, context), flow.loss(x, context), rtol=0.3, atol=0.1)
