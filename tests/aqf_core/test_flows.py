"""The flow: shapes, scores, scaling, errors, sampling in chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import aqf_core.flows
from aqf_core import AutoregressiveQuantileFlow, MaskedMLP, make_transformer
from aqf_core.errors import (
    ContextError,
    DomainError,
    LevelError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from aqf_core.transformers import TRANSFORMERS


def make(
    features: int | tuple[int, ...] = 3, context: int = 2, **options: object
) -> AutoregressiveQuantileFlow:
    torch.manual_seed(0)
    flow = AutoregressiveQuantileFlow(features, context, hidden=(8, 8), **options)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return flow


# Shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
def test_shapes_follow_torch_distributions(batch: tuple[int, ...]) -> None:
    flow = make()
    x, context = torch.randn(*batch, 3), torch.randn(*batch, 2)
    assert flow.loss(x, context).shape == ()
    for objective in ("quantile", "crps", "nll", "energy"):
        assert flow.loss(x, context, objective, reduction="none").shape == batch
    assert flow.log_prob(x, context).shape == batch
    assert flow.cdf(x, context).shape == (*batch, 3)
    assert flow.crps(x, context).shape == (*batch, 3)
    assert flow.quantile(torch.rand(*batch, 3), context).shape == (*batch, 3)
    assert flow.sample(context=context).shape == (*batch, 3)
    assert flow.sample(7, context).shape == (7, *batch, 3)
    assert flow.rsample((4, 2), context).shape == (4, 2, *batch, 3)


def test_data_and_context_broadcast() -> None:
    flow = make()
    x, context = torch.randn(4, 1, 3), torch.randn(5, 2)
    expected = flow.log_prob(x.expand(4, 5, 3), context.expand(4, 5, 2))
    torch.testing.assert_close(flow.log_prob(x, context), expected)
    u = torch.rand(4, 1, 3)
    expected = flow.quantile(u.expand(4, 5, 3), context.expand(4, 5, 2))
    torch.testing.assert_close(flow.quantile(u, context), expected)
    assert flow.loss(x, context, "energy", reduction="none").shape == (4, 5)
    assert flow.loss(x, context, reduction="none").shape == (4, 5)


def test_unconditional_flow_and_its_errors() -> None:
    flow = make(context=0)
    assert flow.sample(6).shape == (6, 3)
    assert flow.loss(torch.randn(6, 3), objective="energy", reduction="none").shape == (6,)
    assert flow().batch_shape == ()
    with pytest.raises(ContextError, match="unconditional"):
        flow.sample(6, torch.zeros(2, 2))
    with pytest.raises(ContextError, match="unconditional"):
        flow.fit_scaling(torch.zeros(6, 3), torch.zeros(6, 2))


def test_events_may_be_images() -> None:
    flow = make((2, 3, 3), conditioner="pixelcnn")
    x, context = torch.randn(4, 2, 3, 3), torch.randn(4, 2)
    assert flow.sample(5, context).shape == (5, 4, 2, 3, 3)
    assert flow.log_prob(x, context).shape == (4,)
    assert flow(context).event_shape == (2, 3, 3)
    assert flow(context).energy_score(x, samples=8).shape == (4,)
    u = flow.cdf(x, context)
    torch.testing.assert_close(flow.quantile(u, context), x, atol=1e-4, rtol=1e-4)
    with pytest.raises(ShapeError, match=r"\(..., 2, 3, 3\)"):
        flow.log_prob(x.flatten(1), context)


# Scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["quantile", "cdf"])
@pytest.mark.parametrize("support", [None, (-6.0, 6.0)])
def test_crps_is_twice_the_quantile_loss_of_the_conditionals(
    direction: str, support: tuple[float, float] | None
) -> None:
    flow = make(direction=direction, support=support).double()
    flow.fit_scaling(torch.randn(100, 3).double())
    x, context = torch.randn(5, 3).double(), torch.randn(5, 2).double()
    levels = (torch.arange(4000).double() + 0.5) / 4000
    y, _ = flow.space.to_model(x)
    h = flow.conditioner(y, flow.context_space.to_model(context)[0])
    q = flow.transformer.quantile(levels.reshape(-1, 1, 1), h)
    error = x - flow.space.to_data(q)
    pinball = (error * (levels.reshape(-1, 1, 1) - (error < 0).double())).mean(0)
    torch.testing.assert_close(flow.crps(x, context), 2 * pinball, rtol=2e-3, atol=1e-4)
    each = flow.loss(x, context, "crps", levels=256, reduction="none")
    torch.testing.assert_close(each, (2 * pinball / flow.space.unit).sum(-1), rtol=5e-3, atol=1e-4)
    half = flow.loss(x, context, "quantile", levels=256, reduction="none")
    torch.testing.assert_close(2 * half, each, rtol=1e-2, atol=1e-3)


def test_energy_is_smallest_for_the_right_flow() -> None:
    flow, wrong = make(context=0), make(context=0)
    with torch.no_grad():  # shift the second distribution
        wrong.conditioner.layers[-1].bias += 1.0
        x = flow.sample(2000)
        right_score = flow.loss(x, objective="energy", samples=16)
        wrong_score = wrong.loss(x, objective="energy", samples=16)
    assert right_score < wrong_score - 0.05


def test_losses_do_not_depend_on_the_unit_of_the_data() -> None:
    x, context = torch.randn(200, 3).double(), torch.randn(200, 2).double()
    scale, shift = torch.tensor([1e4, 1e-4, 3.0]).double(), torch.tensor([1e5, 0.0, -7.0]).double()
    one, other = make().double(), make().double()
    one.fit_scaling(x)
    other.fit_scaling(x * scale + shift)
    for objective in ("quantile", "crps", "nll"):
        expected = one.loss(x, context, objective, levels="fixed")
        actual = other.loss(x * scale + shift, context, objective, levels="fixed")
        torch.testing.assert_close(actual, expected)


def test_context_is_standardised_when_asked() -> None:
    x, context = torch.randn(300, 3), 1e5 + 1e3 * torch.randn(300, 2)
    flow = make().fit_scaling(x, context)
    standard = flow.context_space.to_model(context)[0]
    assert standard.abs().max() < 10
    plain = make().fit_scaling(x)
    torch.testing.assert_close(
        flow.log_prob(x, context), plain.log_prob(x, standard), rtol=1e-4, atol=1e-4
    )


def test_a_bimodal_chain_is_learned() -> None:
    torch.manual_seed(0)

    def draw(n: int) -> Tensor:
        first = torch.where(torch.rand(n) < 0.5, -2.0, 2.0) + 0.3 * torch.randn(n)
        return torch.stack([first, first.abs() + 0.2 * torch.randn(n)], -1)

    flow = AutoregressiveQuantileFlow(2, hidden=(32, 32)).fit_scaling(draw(2000))
    optimiser = torch.optim.Adam(flow.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, 500)
    for _ in range(500):
        optimiser.zero_grad()
        flow.loss(draw(256)).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        u = flow.cdf(draw(4000)).sort(0).values
        grid = (torch.arange(4000) + 0.5) / 4000
        assert (u - grid[:, None]).abs().max() < 0.06  # Rosenblatt levels are uniform
        sample = flow.sample(4000)
    assert (sample[:, 0].abs() < 0.8).float().mean() < 0.06  # little between the modes
    residual = sample[:, 1] - sample[:, 0].abs()
    assert residual.std() < 0.35


# Sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "batch"), [((50,), ()), ((50,), (3,)), ((2,), (30,)), ((), (4, 9)), ((3, 5), (2, 2))]
)
def test_chunks_do_not_change_samples(
    n: tuple[int, ...], batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = make(context=2 if batch else 0)
    context = torch.randn(*batch, 2) if batch else None
    whole = flow.sample(n, context, generator=torch.Generator().manual_seed(1))
    u = torch.rand(*n, *batch, 3)
    quantiles = flow.quantile(u, context)
    before = u.clone()
    monkeypatch.setattr(aqf_core.flows, "CHUNK", 8)
    parts = flow.sample(n, context, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(parts, whole)
    with torch.no_grad():
        torch.testing.assert_close(flow.quantile(u, context), quantiles)
    assert torch.equal(u, before)  # the caller's levels are not overwritten


def test_broadcast_context_survives_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = make()
    u, context = torch.rand(6, 5, 3), torch.randn(6, 1, 2)
    with torch.no_grad():
        whole = flow.quantile(u, context)
        monkeypatch.setattr(aqf_core.flows, "CHUNK", 4)
        torch.testing.assert_close(flow.quantile(u, context), whole)


def test_sample_records_no_graph_and_rsample_does() -> None:
    flow = make()
    context = torch.randn(4, 2, requires_grad=True)
    assert not flow.sample(3, context).requires_grad
    flow.rsample(3, context).sum().backward()
    assert context.grad is not None and context.grad.abs().sum() > 0
    assert all(p.grad is not None for p in flow.parameters())


def test_samples_follow_the_flow() -> None:
    flow = make(context=0)
    u = flow.cdf(flow.sample(20_000))
    grid = (torch.arange(20_000) + 0.5) / 20_000
    assert (u.sort(0).values - grid[:, None]).abs().max() < 0.02
    correlation = torch.corrcoef(u.T)
    assert (correlation - torch.eye(3)).abs().max() < 0.04


def test_levels_zero_and_one_are_finite() -> None:
    flow = make()
    u = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]], requires_grad=True)
    x = flow.quantile(u, torch.zeros(2))
    assert torch.isfinite(x).all()
    x.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in flow.parameters() if p.grad is not None)


# Precision -----------------------------------------------------------------------------------


def test_autocast_leaves_the_flow_in_float32() -> None:
    flow = make()
    x, context = torch.randn(4, 3), torch.randn(4, 2)
    expected = flow.log_prob(x, context)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = flow.log_prob(x, context)
        assert flow.loss(x, context.bfloat16()).dtype == torch.float32
        assert flow.sample(3, context).dtype == torch.float32
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected)


def test_a_flow_in_half_precision_still_runs() -> None:
    flow = make().bfloat16()
    x, context = torch.randn(4, 3), torch.randn(4, 2)
    results = [flow.loss(x, context), flow.loss(x, context, "energy"), flow.log_prob(x, context)]
    results += [flow.quantile(torch.rand(4, 3), context), flow.rsample(2, context)]
    assert all(torch.isfinite(result).all() for result in results)


@settings(max_examples=50, deadline=None)
@given(
    transformer=st.sampled_from(sorted(TRANSFORMERS)),
    fitted=st.booleans(),
    exponents=st.lists(st.integers(-6, 6), min_size=2, max_size=2),
    offset=st.sampled_from([0.0, 1.0, -1e6, 1e6]),
    constant=st.booleans(),
    outlier=st.booleans(),
    support=st.sampled_from([None, (-1e14, None), (-1e14, 1e14)]),
    direction=st.sampled_from(["quantile", "cdf"]),
)
def test_extreme_data_never_give_nan(
    transformer: str,
    fitted: bool,
    exponents: list[int],
    offset: float,
    constant: bool,
    outlier: bool,
    support: tuple[float | None, float | None] | None,
    direction: str,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 2) * 10.0 ** torch.tensor(exponents) + offset
    if constant:
        x[:, 1] = offset
    if outlier and fitted:
        x[0] = 1e12
    # Bounds so far from the data mean nothing as long as the unit of the data is unknown.
    support = support if fitted else None
    flow = make(2, 1, support=support, direction=direction, transformer=transformer)
    context = torch.full((30, 1), offset)
    if fitted:
        flow.fit_scaling(x, context)
    for objective in ("quantile", "crps", "nll", "energy"):
        flow.zero_grad()
        loss = flow.loss(x, context, objective)
        loss.backward()
        assert torch.isfinite(loss), objective
        for name, parameter in flow.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
    x.requires_grad_()
    ends = torch.tensor([[0.0, 1.0]], requires_grad=True)
    for value in (flow.cdf(x, context), flow.log_prob(x, context), flow.quantile(ends, context)):
        assert torch.isfinite(value).all()
        leaves = [x, ends, *flow.parameters()]
        gradients = torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
        assert not any(gradient.isnan().any() for gradient in gradients)
    assert torch.isfinite(flow.sample(10, context)).all()


# Support -------------------------------------------------------------------------------------


@pytest.mark.parametrize("support", [(0.0, None), (None, 5.0), (-1.0, 2.0)])
def test_samples_respect_the_support(support: tuple[float | None, float | None]) -> None:
    flow = make(support=support)
    context = torch.randn(50, 2)
    sample = flow.sample(100, context)
    low = -math.inf if support[0] is None else support[0]
    high = math.inf if support[1] is None else support[1]
    assert (sample >= low).all() and (sample <= high).all()
    assert flow(context).support.check(sample).all()
    u = flow.cdf(sample, context)
    torch.testing.assert_close(flow.quantile(u, context), sample, atol=1e-3, rtol=1e-3)
    with pytest.raises(DomainError, match="outside the support"):
        flow.log_prob(torch.full((50, 3), 10.0 if support[1] is not None else -10.0), context)


# Errors --------------------------------------------------------------------------------------


def test_wrong_inputs_are_named() -> None:
    flow = make()
    x, context = torch.zeros(4, 3), torch.zeros(4, 2)
    with pytest.raises(ShapeError, match=r"x must have shape \(..., 3\), got \(4, 2\)"):
        flow.loss(context, context)
    with pytest.raises(ContextError, match="context is missing"):
        flow.loss(x)
    with pytest.raises(ShapeError, match=r"context must have shape \(..., 2\)"):
        flow.sample(1, x)
    with pytest.raises(ShapeError, match="does not broadcast"):
        flow.log_prob(x, torch.zeros(5, 2))
    with pytest.raises(NonFiniteError, match="x has 1 NaN"):
        flow.log_prob(torch.tensor([0.0, math.nan, 0.0]), context)
    with pytest.raises(NonFiniteError, match="context has"):
        flow.sample(2, context * math.inf)
    with pytest.raises(LevelError, match=r"\[0, 1\]"):
        flow.quantile(x + 1.5, context)
    with pytest.raises(UnknownNameError, match="crps, energy, nll, quantile"):
        flow.loss(x, context, "mse")
    with pytest.raises(UnknownNameError, match="mean, sum, none"):
        flow.loss(x, context, reduction="median")
    with pytest.raises(UnknownNameError, match="affine"):
        AutoregressiveQuantileFlow(2, transformer="cubic")
    with pytest.raises(UnknownNameError, match="masked_mlp"):
        AutoregressiveQuantileFlow(2, conditioner="cnn")
    with pytest.raises(UnknownNameError, match="direction"):
        AutoregressiveQuantileFlow(2, direction="up")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="features must be at least 1"):
        AutoregressiveQuantileFlow(0)
    with pytest.raises(ShapeError, match="n_params"):
        AutoregressiveQuantileFlow(2, conditioner=MaskedMLP(2, 0, 5))
    with pytest.raises(TypeError, match=r"x must be a torch tensor, got ndarray; .*as_tensor"):
        flow.loss(x.numpy(), context)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="context must be a torch tensor, got list"):
        flow.sample(1, [0.0, 0.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="x must be real"):
        flow.log_prob(x + 1j, context)
    with pytest.raises(ShapeError, match=r"u must have shape \(..., 3\), got \(\)"):
        flow.quantile(torch.tensor(0.5), context)
    for n in (-1, 2.5, (3, -1)):
        with pytest.raises(ShapeError, match="number of samples must be a non-negative integer"):
            flow.sample(n, context)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="features must be a non-negative integer"):
        AutoregressiveQuantileFlow(3.0)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="context must be a non-negative integer"):
        AutoregressiveQuantileFlow(3, context=None)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="'cdf' was given .* is 'quantile'"):
        AutoregressiveQuantileFlow(2, transformer=make_transformer("spline"), direction="cdf")
    for support in (0.0, "positive", (0, 1, 2)):
        with pytest.raises(DomainError, match=r"support must be a pair \(low, high\)"):
            AutoregressiveQuantileFlow(2, support=support)  # type: ignore[arg-type]


def test_sizes_may_be_numpy_integers_and_a_transformer_object_keeps_its_direction() -> None:
    transformer = make_transformer("spline", direction="cdf")
    flow = AutoregressiveQuantileFlow(np.int64(2), np.int64(1), transformer, hidden=8)
    assert flow.transformer.direction == "cdf"
    assert flow.sample(np.int64(3), torch.zeros(4, 1)).shape == (3, 4, 2)
    assert flow(torch.zeros(4, 1)).sample(5).shape == (5, 4, 2)


@pytest.mark.filterwarnings("error")
def test_gradients_per_sample_of_random_levels_take_no_detour() -> None:
    """torch warns about operations that functorch would run row by row."""
    flow = make(2, 0)
    loss = torch.func.vmap(torch.func.grad(lambda x: flow.loss(x)), randomness="different")
    assert torch.isfinite(loss(torch.randn(4, 2))).all()
