"""Families of monotone maps; one file per family, all behind `Transformer`."""

from __future__ import annotations

from typing import Any

from ..validation import lookup
from .affine import Affine
from .base import Direction, Transformer
from .spline import RationalQuadraticSpline

__all__ = [
    "TRANSFORMERS",
    "Affine",
    "Direction",
    "RationalQuadraticSpline",
    "Transformer",
    "make_transformer",
]

TRANSFORMERS: dict[str, type[Transformer]] = {
    "affine": Affine,
    "spline": RationalQuadraticSpline,
}


def make_transformer(transformer: str | Transformer, **options: Any) -> Transformer:
    """Build a transformer by name, or return the given object.

    Args:
        transformer: a name in `TRANSFORMERS`, or a `Transformer`.
        **options: passed to the class; not allowed together with an object.

    Example:
        >>> make_transformer("spline", bins=8, direction="cdf").n_params
        27
        >>> make_transformer("cubic")
        Traceback (most recent call last):
        ...
        aqf_core.errors.UnknownNameError: unknown transformer 'cubic'; choose from affine, spline.
    """
    if isinstance(transformer, Transformer):
        if options:
            raise TypeError(
                f"options {sorted(options)} were given together with a transformer object; "
                "set them when building the object."
            )
        return transformer
    return lookup(transformer, TRANSFORMERS, "transformer")(**options)
