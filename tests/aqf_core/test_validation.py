"""Checks raise the named error, say what is wrong, and stay out of the way of tracing."""

from __future__ import annotations

import pytest
import torch

from aqf_core import errors, validation


def test_every_error_is_a_value_error() -> None:
    for name in errors.__all__:
        error = getattr(errors, name)
        assert issubclass(error, errors.AQFError)
        assert name == "AQFError" or issubclass(error, ValueError)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_check_finite_counts_the_bad_values(bad: float) -> None:
    x = torch.zeros(2, 3)
    assert validation.check_finite(x) is x
    x[1, 2] = bad
    with pytest.raises(errors.NonFiniteError, match="target has 1 .* out of 6"):
        validation.check_finite(x, "target")


@pytest.mark.parametrize("bad", [-1e-6, 1.000001, float("nan")])
def test_check_levels(bad: float) -> None:
    assert validation.check_levels(torch.tensor([0.0, 0.5, 1.0])).shape == (3,)
    with pytest.raises(errors.LevelError, match=r"\[0, 1\]"):
        validation.check_levels(torch.tensor([0.5, bad], dtype=torch.float64))


def test_check_features() -> None:
    with pytest.raises(errors.ShapeError, match=r"\(\.\.\., 4\), got \(7, 3\)"):
        validation.check_features(torch.zeros(7, 3), 4)
    with pytest.raises(errors.ShapeError):
        validation.check_features(torch.tensor(1.0), 1)
    with pytest.raises(errors.NonFiniteError):
        validation.check_features(torch.full((1, 2), torch.nan), 2)


def test_check_context() -> None:
    context = torch.zeros(5, 1, 2)
    assert validation.check_context(None, 0) is None
    assert validation.check_context(context, 2, batch_shape=(5, 7)) is context
    with pytest.raises(errors.ContextError, match="missing"):
        validation.check_context(None, 2)
    with pytest.raises(errors.ContextError, match="context=2"):
        validation.check_context(context, 0)
    with pytest.raises(errors.ShapeError):
        validation.check_context(context, 3)
    with pytest.raises(errors.ShapeError, match="does not broadcast"):
        validation.check_context(context, 2, batch_shape=(4, 7))


def test_lookup_lists_the_names() -> None:
    assert validation.lookup("a", {"a": 1}, "thing") == 1
    with pytest.raises(errors.UnknownNameError, match="unknown thing 'z'; choose from a, b"):
        validation.lookup("z", {"b": 1, "a": 2}, "thing")


def test_reduce() -> None:
    loss = torch.tensor([1.0, 2.0, 6.0])
    assert validation.reduce(loss, "mean") == 3
    assert validation.reduce(loss, "sum") == 9
    assert validation.reduce(loss, "none") is loss
    with pytest.raises(errors.UnknownNameError, match="mean, sum, none"):
        validation.reduce(loss, "median")


def test_tracing_is_seen_in_every_mode() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        return validation.check_finite(x) * (2.0 if validation.tracing() else 1.0)

    x = torch.ones(3)
    assert not validation.tracing()
    assert torch.equal(checked(x), x)
    assert torch.equal(torch.func.vmap(checked)(x), 2 * x)
    assert torch.equal(torch.func.grad(lambda t: checked(t).sum())(x), 2 * x)
    assert torch.equal(torch.compile(checked, fullgraph=True, backend="eager")(x), 2 * x)

    class Checked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checked(x)

    assert torch.equal(torch.export.export(Checked(), (x,)).module()(x), 2 * x)
    assert not validation.tracing()
