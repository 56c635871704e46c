"""Conditioners: how the parameters of one variable depend on the earlier ones and the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ShapeError
from ..validation import as_shape, lookup
from .base import Conditioner
from .independent import Independent
from .masked_mlp import MaskedMLP
from .pixelcnn import PixelCNN
from .recurrent import Recurrent

__all__ = [
    "CONDITIONERS",
    "Conditioner",
    "Independent",
    "MaskedMLP",
    "PixelCNN",
    "Recurrent",
    "make_conditioner",
]

CONDITIONERS: dict[str, type[Conditioner]] = {
    "independent": Independent,
    "masked_mlp": MaskedMLP,
    "pixelcnn": PixelCNN,
    "recurrent": Recurrent,
}


def make_conditioner(
    conditioner: str | Conditioner,
    shape: Sequence[int],
    context: int,
    n_params: int,
    hidden: int | Sequence[int] | None = None,
    **options: Any,
) -> Conditioner:
    """Build a conditioner by name, or check that a given one fits.

    Args:
        conditioner: a name in `CONDITIONERS`, or an object.
        shape: event shape, (d,), or (C, H, W) for images.
        context: number of context features, 0 for none.
        n_params: number of parameters per variable, given by the transformer.
        hidden: sizes of the hidden layers; None means the conditioner's own default.
        **options: passed to the conditioner's constructor.

    Example:
        >>> make_conditioner("recurrent", (3,), 0, 5, hidden=(8,), cell="gru").n_params
        5
        >>> make_conditioner("transformer", (3,), 0, 5)
        Traceback (most recent call last):
        ...
        aqf_core.errors.UnknownNameError: unknown conditioner 'transformer'; choose from ...
    """
    features = 1
    for size in shape:
        features *= size
    if isinstance(conditioner, Conditioner):
        if options:
            raise TypeError(f"options {sorted(options)} need a conditioner given by name.")
        expected = {"features": features, "context": context, "n_params": n_params}
        for name, value in expected.items():
            if getattr(conditioner, name) != value:
                raise ShapeError(
                    f"the conditioner has {name}={getattr(conditioner, name)}, "
                    f"but the flow needs {name}={value}."
                )
        return conditioner
    kind = lookup(conditioner, CONDITIONERS, "conditioner")
    if hidden is not None:
        options["hidden"] = as_shape(hidden, "hidden")
    if kind is PixelCNN:
        return PixelCNN(options.pop("shape", tuple(shape)), context, n_params, **options)
    return kind(features, context, n_params, **options)
