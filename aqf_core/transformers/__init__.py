"""Families of monotone maps; one file per family, all behind `Transformer`."""

from __future__ import annotations

from typing import Any

from ..errors import UnknownNameError
from ..validation import lookup
from .affine import Affine
from .base import Direction, Transformer
from .deep_sigmoid import DeepSigmoid
from .monotone_net import MonotoneNet
from .piecewise_linear import PiecewiseLinear
from .sigmoid_mixture import SigmoidMixture
from .spline import RationalQuadraticSpline
from .unconstrained import Unconstrained

__all__ = [
    "TRANSFORMERS",
    "Affine",
    "DeepSigmoid",
    "Direction",
    "MonotoneNet",
    "PiecewiseLinear",
    "RationalQuadraticSpline",
    "SigmoidMixture",
    "Transformer",
    "Unconstrained",
    "make_transformer",
]

TRANSFORMERS: dict[str, type[Transformer]] = {
    "affine": Affine,
    "deep_sigmoid": DeepSigmoid,
    "monotone_net": MonotoneNet,
    "piecewise_linear": PiecewiseLinear,
    "sigmoid_mixture": SigmoidMixture,
    "spline": RationalQuadraticSpline,
    "unconstrained": Unconstrained,
}


def make_transformer(
    transformer: str | Transformer, direction: Direction | None = None, **options: Any
) -> Transformer:
    """Build a transformer by name, or return the given object.

    Args:
        transformer: a name in `TRANSFORMERS`, or a `Transformer`.
        direction: "quantile" (the default) or "cdf"; an object must agree with it.
        **options: passed to the class; not allowed together with an object.

    Example:
        >>> make_transformer("spline", bins=8, direction="cdf").n_params
        29
        >>> make_transformer("cubic")
        Traceback (most recent call last):
        ...
        aqf_core.errors.UnknownNameError: unknown transformer 'cubic'; choose from affine, ...
    """
    if isinstance(transformer, Transformer):
        if options:
            raise TypeError(
                f"options {sorted(options)} were given together with a transformer object; "
                "set them when building the object."
            )
        if direction is not None and direction != transformer.direction:
            raise UnknownNameError(
                f"direction={direction!r} was given together with a transformer object whose "
                f"direction is {transformer.direction!r}; set it when building the object."
            )
        return transformer
    if direction is not None:
        options["direction"] = direction
    return lookup(transformer, TRANSFORMERS, "transformer")(**options)
