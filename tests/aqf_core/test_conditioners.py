"""Conditioners: what they may see, and that stepping equals the parallel pass at the same cost."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aqf_core.conditioners import (
    CONDITIONERS,
    Conditioner,
    Independent,
    MaskedMLP,
    PixelCNN,
    Recurrent,
    make_conditioner,
)
from aqf_core.errors import ShapeError, UnknownNameError

P = 3


def build(name: str, context: int) -> Conditioner:
    """Small conditioners that between them use every option."""
    torch.manual_seed(0)
    conditioner: Conditioner = {
        "mlp": lambda: MaskedMLP(5, context, P, (16, 16)),
        "mlp_linear": lambda: MaskedMLP(4, context, P, ()),
        "mlp_reversed_relu": lambda: MaskedMLP(
            4, context, P, (9, 7), "reversed", activation="relu"
        ),
        "mlp_random_residual": lambda: MaskedMLP(6, context, P, (12, 12, 8), "random", True),
        "mlp_explicit": lambda: MaskedMLP(3, context, P, (8,), [2, 0, 1], activation="elu"),
        "mlp_wide_data": lambda: MaskedMLP(11, context, P, (5, 4), activation="elu"),
        "mlp_single": lambda: MaskedMLP(1, context, P, (6,)),
        "lstm": lambda: Recurrent(5, context, P, (8, 6), "lstm"),
        "gru": lambda: Recurrent(4, context, P, (7, 7, 5), "gru", "random"),
        "lstm_single": lambda: Recurrent(1, context, P, (6,)),
        "pixelcnn_grey": lambda: PixelCNN((1, 4, 5), context, P, (8, 8, 8, 8, 8)),
        "pixelcnn_colour": lambda: PixelCNN((3, 3, 3), context, P, (8, 6, 6), kernel=5),
        "pixelcnn_pixel": lambda: PixelCNN((2, 1, 1), context, P, (12,)),
        "independent": lambda: Independent(4, context, P, (8,)),
        "independent_linear": lambda: Independent(4, context, P, ()),
    }[name]()
    with torch.no_grad():  # large weights, so that every dependence shows
        for parameter in conditioner.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return conditioner.double()


NAMES = [
    "mlp",
    "mlp_linear",
    "mlp_reversed_relu",
    "mlp_random_residual",
    "mlp_explicit",
    "mlp_wide_data",
    "mlp_single",
    "lstm",
    "gru",
    "lstm_single",
    "pixelcnn_grey",
    "pixelcnn_colour",
    "pixelcnn_pixel",
    "independent",
    "independent_linear",
]

cases = pytest.mark.parametrize(
    ("name", "context"), [(name, context) for name in NAMES for context in (0, 2)]
)


def inputs(conditioner: Conditioner, *shape: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = torch.randn(*shape, conditioner.features, dtype=torch.float64)
    if not conditioner.context:
        return x, None
    return x, torch.randn(*shape, conditioner.context, dtype=torch.float64)


@cases
def test_steps_equal_the_parallel_pass(name: str, context: int) -> None:
    conditioner = build(name, context)
    x, c = inputs(conditioner, 2, 3)
    parallel = conditioner(x, c)
    assert parallel.shape == (2, 3, conditioner.features, P)
    torch.testing.assert_close(conditioner.stepwise(x, c), parallel)
    with torch.no_grad():  # writes into preallocated memory
        torch.testing.assert_close(conditioner.stepwise(x, c), parallel)
    conditioner.float()
    single = conditioner.stepwise(x.float(), None if c is None else c.float())
    torch.testing.assert_close(single.double(), parallel, atol=1e-5, rtol=1e-5)


class OnlyParallel(MaskedMLP):
    """A conditioner whose author wrote no steps."""

    start = Conditioner.start
    step = Conditioner.step


@pytest.mark.parametrize("context", [0, 2])
def test_steps_need_not_be_written(context: int) -> None:
    conditioner = OnlyParallel(4, context, P, (8,), "random").double()
    x, c = inputs(conditioner, 2, 3)
    torch.testing.assert_close(conditioner.stepwise(x, c), conditioner(x, c))
    if c is not None:
        torch.testing.assert_close(conditioner.stepwise(x, c[0]), conditioner(x, c[0]))


@cases
def test_sees_all_earlier_variables_and_no_other(name: str, context: int) -> None:
    conditioner = build(name, context)
    x, c = inputs(conditioner, 64)  # many points: a unit may be inactive at one of them
    c = torch.zeros(64, 0) if c is None else c

    def summed(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return conditioner(3.0 * x, c if context else None).sum(-1)

    jacobian = torch.func.vmap(torch.func.jacrev(summed))(x, c)
    seen = (jacobian != 0).any(0)
    rank = torch.tensor(conditioner.order).argsort()
    earlier = rank[:, None] > rank[None, :]
    if conditioner.independent:
        earlier = torch.zeros_like(earlier)
    if name == "mlp_wide_data":  # fewer units than variables: some dependences are missing
        assert not (seen & ~earlier).any()
        assert seen.any()
    else:
        assert torch.equal(seen, earlier)


@pytest.mark.parametrize("name", NAMES)
def test_context_reaches_every_variable(name: str) -> None:
    conditioner = build(name, 2)
    x, c = inputs(conditioner, 64)
    change = conditioner(x, c) - conditioner(x, -3.0 * c)
    assert (change.abs().amax((0, 2)) > 0).all()


@cases
def test_context_is_broadcast(name: str, context: int) -> None:
    conditioner = build(name, context)
    x, c = inputs(conditioner, 2, 3)
    row = None if c is None else c[0]
    expected = conditioner(x, None if row is None else row.expand(2, 3, -1))
    torch.testing.assert_close(conditioner(x, row), expected)
    torch.testing.assert_close(conditioner.stepwise(x, row), expected)
    if row is not None:
        assert conditioner(x[0, 0], row).shape == (3, conditioner.features, P)
        torch.testing.assert_close(
            conditioner.stepwise(x[0, 0], row), conditioner(x[0, 0].expand(3, -1), row)
        )


@pytest.mark.parametrize("name", ["mlp", "mlp_random_residual", "lstm", "gru", "pixelcnn_colour"])
def test_all_steps_together_cost_about_one_pass(name: str) -> None:
    conditioner = build(name, 2)
    x, c = inputs(conditioner, 10)
    if isinstance(conditioner, Recurrent):  # the fused kernels are not counted
        weights = sum(w.numel() for w in conditioner.parameters() if w.dim() == 2)
        one_pass = 2 * weights * x.numel()
    else:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            conditioner(x, c)
        one_pass = counter.get_total_flops()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        conditioner.stepwise(x, c)
    assert 0 < counter.get_total_flops() <= 1.1 * one_pass


def test_early_variables_see_the_context_through_many_units() -> None:
    conditioner = MaskedMLP(63, 4, P, (64, 64))
    degrees = conditioner._below[1]
    assert degrees[1] == 16  # a quarter of the units depends on the context alone


def test_starts_close_to_constant_parameters() -> None:
    for name in CONDITIONERS:
        shape = (1, 2, 2) if name == "pixelcnn" else (4,)
        conditioner = make_conditioner(name, shape, 2, 9, (32, 32))
        h = conditioner(torch.randn(100, 4), torch.randn(100, 2))
        assert h.abs().max() < 0.5


def test_random_order_is_reproducible() -> None:
    first, second = (MaskedMLP(8, order="random", seed=3).order for _ in range(2))
    assert first == second != MaskedMLP(8, order="random", seed=4).order


def test_weights_of_another_order_are_refused() -> None:
    saved = MaskedMLP(3, order="reversed").state_dict()
    MaskedMLP(3, order=[2, 1, 0]).load_state_dict(saved)
    with pytest.raises(RuntimeError, match=r"feature order \[2, 1, 0\]"):
        MaskedMLP(3).load_state_dict(saved)


def test_pixelcnn_generates_in_raster_order() -> None:
    assert PixelCNN((2, 1, 2), hidden=(4,)).order == (0, 2, 1, 3)


def test_given_objects_must_fit() -> None:
    conditioner = MaskedMLP(3, 2, 5)
    assert make_conditioner(conditioner, (3,), 2, 5) is conditioner
    with pytest.raises(ShapeError, match="n_params=5, but the flow needs n_params=7"):
        make_conditioner(conditioner, (3,), 2, 7)
    with pytest.raises(TypeError, match="order"):
        make_conditioner(conditioner, (3,), 2, 5, order="random")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"conditioner": "cnn"}, UnknownNameError, "independent, masked_mlp, pixelcnn, recurrent"),
        ({"order": "sorted"}, UnknownNameError, "natural, reversed, random"),
        ({"order": [0, 1]}, ShapeError, r"permutation of 0 ... 2, got \[0, 1\]"),
        ({"activation": "tanh"}, UnknownNameError, "elu, relu, silu"),
        ({"hidden": (8, 0)}, ShapeError, "must be positive"),
        ({"conditioner": "independent", "hidden": (0,)}, ShapeError, "must be positive"),
        ({"conditioner": "recurrent", "cell": "rnn"}, UnknownNameError, "gru, lstm"),
        ({"conditioner": "recurrent", "hidden": ()}, ShapeError, "needs hidden sizes"),
        ({"conditioner": "pixelcnn"}, ShapeError, "channels, height, width"),
        ({"shape": (0,)}, ShapeError, "features must be at least 1"),
    ],
)
def test_wrong_options_are_named(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    arguments = {"conditioner": "masked_mlp", "shape": (3,), "context": 0, "n_params": 2}
    with pytest.raises(error, match=message):
        make_conditioner(**(arguments | options))  # type: ignore[arg-type]
