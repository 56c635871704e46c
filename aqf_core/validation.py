"""Checks of user input, shared by the whole library.

Checks of *values* (NaN, levels) need the numbers, so they are skipped wherever there are none:
under `torch.compile`, `torch.export` and functorch transforms (see `tracing`), and on the device
"meta". Checks of *shapes* always run.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .errors import ContextError, LevelError, NonFiniteError, ShapeError, UnknownNameError

__all__ = [
    "as_shape",
    "at_least_float32",
    "broadcast_shapes",
    "check_context",
    "check_features",
    "check_finite",
    "check_levels",
    "check_reduction",
    "check_tensor",
    "has_values",
    "lookup",
    "paired_shape",
    "reduce",
    "tracing",
]

T = TypeVar("T")

REDUCTIONS = ("mean", "sum", "none")


def tracing() -> bool:
    """Whether code runs under compilation, export, `torch.jit.trace` or a functorch transform.

    Data-dependent Python control flow is impossible there.

    Example:
        >>> tracing()
        False
        >>> torch.func.vmap(lambda x: x + float(tracing()))(torch.zeros(2))
        tensor([1., 1.])
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    # functorch has no public way to ask; an empty interpreter stack means no transform is active.
    return torch._C._functorch.peek_interpreter_stack() is not None


def has_values(x: Tensor) -> bool:
    """Whether the numbers in `x` can be looked at.

    Example:
        >>> has_values(torch.zeros(2)), has_values(torch.zeros(2, device="meta"))
        (True, False)
    """
    return not (x.is_meta or tracing())


def as_shape(sizes: int | Sequence[int], name: str) -> tuple[int, ...]:
    """A shape given as one size or as a sequence of sizes.

    Example:
        >>> as_shape(3, "features"), as_shape([2, 5], "features")
        ((3,), (2, 5))
        >>> as_shape(2.5, "features")
        Traceback (most recent call last):
        ...
        aqf_core.errors.ShapeError: features must be a non-negative integer or several, got 2.5.
    """
    shape: tuple[int, ...] = (-1,)
    if isinstance(sizes, int):
        shape = (sizes,)
    else:
        try:
            shape = tuple(operator.index(size) for size in sizes)
        except TypeError:
            # NumPy's integers are no `int` and cannot be iterated.
            shape = (operator.index(sizes),) if hasattr(sizes, "__index__") else (-1,)
    if any(size < 0 for size in shape):
        raise ShapeError(f"{name} must be a non-negative integer or several, got {sizes}.")
    return shape


def at_least_float32(x: Tensor) -> Tensor:
    """`x`, converted to float32 if it is in half precision: good for networks, not for quantiles.

    Example:
        >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape to which all shapes broadcast; a `ShapeError` when there is none.

    Example:
        >>> broadcast_shapes((3, 1), (4,))
        torch.Size([3, 4])
    """
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    except RuntimeError:
        listed = " and ".join(str(tuple(s)) for s in shapes)
        raise ShapeError(f"shapes {listed} do not broadcast.") from None


def paired_shape(**shapes: Sequence[int]) -> torch.Size:
    """The shape to which all shapes broadcast, which one of them must have already.

    Anything else pairs each with each, such as a column (N, 1) of observations with N predictions:
    almost always a mistake, and one that trains and scores without a word.

    Example:
        >>> paired_shape(prediction=(), y=(5,))
        torch.Size([5])
        >>> paired_shape(x=(5,), y=(5, 1))
        Traceback (most recent call last):
        ...
        aqf_core.errors.ShapeError: x of shape (5,) and y of shape (5, 1) would be paired each ...
    """
    listed = " and ".join(f"{name} of shape {tuple(shape)}" for name, shape in shapes.items())
    try:
        common = broadcast_shapes(*shapes.values())
    except ShapeError:
        raise ShapeError(f"{listed} do not broadcast.") from None
    if common not in [torch.Size(shape) for shape in shapes.values()]:
        raise ShapeError(
            f"{listed} would be paired each with each; drop or add dimensions of size 1."
        )
    return common


def check_tensor(x: object, name: str = "x") -> Tensor:
    """Return `x`, or raise `TypeError` when it is no tensor of real numbers.

    Example:
        >>> check_tensor([1.0, 2.0])
        Traceback (most recent call last):
        ...
        TypeError: x must be a torch tensor, got list; convert it with torch.as_tensor.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a torch tensor, got {type(x).__name__}; "
            "convert it with torch.as_tensor."
        )
    if x.is_complex():
        raise TypeError(f"{name} must be real, got a tensor of {x.dtype}.")
    return x


def check_finite(x: Tensor, name: str = "x") -> Tensor:
    """Return `x`, or raise `NonFiniteError` when it contains NaN or infinity.

    Example:
        >>> check_finite(torch.tensor([0.0, float("nan")]), "target")
        Traceback (most recent call last):
        ...
        aqf_core.errors.NonFiniteError: target has 1 NaN or infinite value out of 2; ...
    """
    if not has_values(check_tensor(x, name)):
        return x
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        plural = "s" if bad > 1 else ""
        raise NonFiniteError(
            f"{name} has {bad} NaN or infinite value{plural} out of {x.numel()}; "
            "drop or impute them first."
        )
    return x


def check_levels(u: Tensor, name: str = "level") -> Tensor:
    """Return `u`, or raise `LevelError` when it is not everywhere in [0, 1].

    Example:
        >>> check_levels(torch.tensor([0.0, 1.0]))
        tensor([0., 1.])
        >>> check_levels(torch.tensor(95.0))
        Traceback (most recent call last):
        ...
        aqf_core.errors.LevelError: level must lie in [0, 1], but 1 of 1 values does not (95.0); ...
    """
    if not has_values(check_tensor(u, name)):
        return u
    inside = (u >= 0) & (u <= 1)
    if not bool(inside.all()):
        bad = u[~inside]
        raise LevelError(
            f"{name} must lie in [0, 1], but {bad.numel()} of {u.numel()} values "
            f"{'does' if bad.numel() == 1 else 'do'} not "
            f"({bad.flatten()[0].item()}); pass probabilities, not percentages."
        )
    return u


def check_features(x: Tensor, features: int, name: str = "x") -> Tensor:
    """Return `x`, or raise when its last dimension is not `features` or it is not finite.

    Example:
        >>> check_features(torch.zeros(5, 3), 2)
        Traceback (most recent call last):
        ...
        aqf_core.errors.ShapeError: x must have shape (..., 2), got (5, 3).
    """
    if check_tensor(x, name).dim() == 0 or x.shape[-1] != features:
        raise ShapeError(f"{name} must have shape (..., {features}), got {tuple(x.shape)}.")
    return check_finite(x, name)


def check_context(
    context: Tensor | None,
    features: int,
    batch_shape: Sequence[int] | None = None,
    name: str = "context",
) -> Tensor | None:
    """Return `context`, or raise when it does not fit a model with `features` context features.

    Args:
        context: shape (..., features), or None.
        features: what the model was built for; 0 means an unconditional model.
        batch_shape: when given, `context.shape[:-1]` must broadcast with it.
        name: what to call the tensor in the message.

    Raises:
        ContextError: missing although features > 0, or given although features == 0.
        ShapeError: wrong last dimension, or not broadcastable with `batch_shape`.
        NonFiniteError: NaN or infinite values.

    Example:
        >>> check_context(None, 3)
        Traceback (most recent call last):
        ...
        aqf_core.errors.ContextError: context is missing: this model needs one of shape (..., 3).
    """
    if context is None:
        if features:
            raise ContextError(
                f"{name} is missing: this model needs one of shape (..., {features})."
            )
        return None
    check_tensor(context, name)
    if not features:
        raise ContextError(
            f"{name} was given to an unconditional model; build it with "
            f"context={context.shape[-1] if context.dim() else 1} or leave it out."
        )
    check_features(context, features, name)
    if batch_shape is not None:
        try:
            broadcast_shapes(batch_shape, context.shape[:-1])
        except ShapeError:
            raise ShapeError(
                f"{name} has batch shape {tuple(context.shape[:-1])}, which does not broadcast "
                f"with {tuple(batch_shape)}."
            ) from None
    return context


def lookup(name: str, table: Mapping[str, T], kind: str) -> T:
    """Return `table[name]`, or raise `UnknownNameError` listing the known names.

    Example:
        >>> lookup("cubic", {"affine": 1, "spline": 2}, "transformer")
        Traceback (most recent call last):
        ...
        aqf_core.errors.UnknownNameError: unknown transformer 'cubic'; choose from affine, spline.
    """
    if name not in table:
        raise UnknownNameError(f"unknown {kind} {name!r}; choose from {', '.join(sorted(table))}.")
    return table[name]


def check_reduction(reduction: str) -> str:
    """Return `reduction`, or raise `UnknownNameError` when it is not mean, sum or none.

    Example:
        >>> check_reduction("median")
        Traceback (most recent call last):
        ...
        aqf_core.errors.UnknownNameError: unknown reduction 'median'; choose from mean, sum, none.
    """
    if reduction not in REDUCTIONS:
        raise UnknownNameError(
            f"unknown reduction {reduction!r}; choose from {', '.join(REDUCTIONS)}."
        )
    return reduction


def reduce(loss: Tensor, reduction: str = "mean") -> Tensor:
    """Apply a reduction name to a tensor of losses.

    Args:
        loss: any shape.
        reduction: "mean", "sum" or "none" (returned as it is).

    Example:
        >>> reduce(torch.tensor([1.0, 3.0]), "mean")
        tensor(2.)
    """
    check_reduction(reduction)
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    return loss
