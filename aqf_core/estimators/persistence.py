"""A fitted bag as numbers and text for a file, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model_files import (
    ModelFileError,
    pack_recalibration,
    plain,
    read,
    unpack_recalibration,
    write,
)
from .encoding import FeatureEncoding
from .fitting import Recipe, build_model
from .prediction import Fitted

__all__ = ["ModelFileError", "pack_model", "plain", "read", "unpack_model", "write"]


def pack_model(fitted: Fitted) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a trained bag."""
    recalibration, tensors = pack_recalibration(fitted.recalibration)
    for name, value in fitted.model.state_dict().items():
        # Trained in float32 and only used in float64, so nothing is lost.
        tensors[f"model.{name}"] = value.float() if value.is_floating_point() else value
    tensors["ranges"] = torch.from_numpy(fitted.model.encoding.ranges)
    tensors["loc"] = torch.from_numpy(np.array(fitted.loc, dtype=np.float64))
    tensors["scale"] = torch.from_numpy(np.array(fitted.scale, dtype=np.float64))
    space = fitted.model.space
    ends = (space.low, space.high)
    support = None if space.is_linear else [end if math.isfinite(end) else None for end in ends]
    header = {"outputs": fitted.model.outputs, "support": support}
    return header | {"recalibration": recalibration}, tensors


def unpack_model(recipe: Recipe, header: dict[str, Any], tensors: dict[str, Tensor]) -> Fitted:
    """The inverse of `pack_model`."""
    state = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    tables = {k.removeprefix("encoding."): v for k, v in state.items() if k.startswith("encoding.")}
    encoding = FeatureEncoding(recipe.settings.bins).set_tables(tables)
    encoding.ranges = tensors["ranges"].numpy()
    model = build_model(recipe, encoding, header["outputs"])
    try:
        model.load_state_dict(state)
    except RuntimeError:
        raise ModelFileError(
            "the weights in this file do not fit its settings; it was written by another version. "
            "Fit the model again and save it."
        ) from None
    recalibration = unpack_recalibration(header["recalibration"], tensors)
    loc, scale = tensors["loc"].numpy(), tensors["scale"].numpy()
    return Fitted(model.to(recipe.device).double().eval(), loc, scale, recalibration)
