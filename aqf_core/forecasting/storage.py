"""A fitted forecaster as numbers and text in one file, and back."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

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
from .fitted import Fitted
from .fitting import build_network
from .frames import Layout
from .frequency import Frequency
from .series import SeriesSet
from .training import History
from .windows import WindowShape

if TYPE_CHECKING:
    from .forecaster import Forecaster

__all__ = ["load_forecaster", "save_forecaster"]

F = TypeVar("F", bound="Forecaster")


def save_forecaster(forecaster: Forecaster, path: str | os.PathLike[str]) -> None:
    """Write a fitted forecaster with its series."""
    fitted = forecaster.fitted_
    data = fitted.data
    recalibration, tensors = pack_recalibration(fitted.recalibration)
    tensors |= {f"network.{k}": v for k, v in fitted.network.state_dict().items()}
    tensors["values"] = torch.from_numpy(np.concatenate(data.values))
    tensors["lengths"] = torch.from_numpy(data.lengths)
    starts = np.array([s.astype("datetime64[s]").astype(np.int64) for s in data.starts])
    tensors["starts"] = torch.from_numpy(starts)
    if fitted.moments is not None and data.covariates is not None:
        tensors["moments"] = torch.from_numpy(np.stack(fitted.moments))
        tensors["covariates"] = torch.from_numpy(np.concatenate(data.covariates))
        tensors["covered"] = torch.tensor([len(c) for c in data.covariates])
    if fitted.stretch is not None:
        tensors["stretch"] = fitted.stretch
    if fitted.checked is not None:
        tensors["checked"] = torch.from_numpy(fitted.checked)
    options = plain(dict(forecaster._given))
    header = {
        "class": type(forecaster).__name__,
        "preset": forecaster.preset,
        "options": {name: plain(value) for name, value in options.items()},
        "horizon": forecaster.horizon,
        "columns": None if forecaster.columns is None else dict(forecaster.columns),
        "random_state": forecaster.random_state,
        "extra": forecaster._extra(),
        "frequency": asdict(data.frequency),
        "layout": {k: plain(v) for k, v in asdict(data.layout).items()},
        "names": [plain(name) for name in fitted.names],
        "series": [plain(name) for name in data.names],
        "shape": asdict(fitted.shape),
        "known": fitted.network.inputs - fitted.network.past - fitted.network.embedding_size - 2,
        "support": None if fitted.support is None else [str(s) for s in fitted.support],
        "recalibration": recalibration,
    }
    write(path, header, tensors)


def load_forecaster(kind: type[F], path: str | os.PathLike[str]) -> F:
    """Read a forecaster of a class or of one of its subclasses."""
    header, tensors = read(path)
    kinds = {c.__name__: c for c in (kind, *kind.__subclasses__())}
    found = kinds.get(header["class"])
    if found is None:
        raise ModelFileError(
            f"{os.fspath(path)!r} holds a {header['class']}, not a {kind.__name__}."
        )
    options: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in header["options"].items()
    }
    model = found(
        header["preset"],
        horizon=header["horizon"],
        columns=header["columns"],
        random_state=header["random_state"],
        **header["extra"],
        **options,
    )
    shape = WindowShape(**(header["shape"] | {"lags": tuple(header["shape"]["lags"])}))
    names = {_name(name): i for i, name in enumerate(header["names"])}
    device = model._torch_device()
    network = build_network(model, shape, len(names), header["known"])
    prefix = "network."
    network.load_state_dict(
        {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    )
    moments = tensors.get("moments")
    support = header["support"]
    model.fitted_ = Fitted(
        network.to(device).eval(),
        shape,
        names,
        None if moments is None else (moments[0].numpy(), moments[1].numpy()),
        None if support is None else (float(support[0]), float(support[1])),
        unpack_recalibration(header["recalibration"], tensors),
        _unpack_series(header, tensors),
        History(),
        device,
        tensors.get("stretch"),
        tensors["checked"].numpy() if "checked" in tensors else None,
    )
    return model


def _name(name: Any) -> Any:
    return tuple(name) if isinstance(name, list) else name


def _unpack_series(header: dict[str, Any], tensors: dict[str, Tensor]) -> SeriesSet:
    ends = tensors["lengths"].cumsum(0).tolist()[:-1]
    covariates = None
    if "covariates" in tensors:
        split = tensors["covered"].cumsum(0).tolist()[:-1]
        covariates = np.split(tensors["covariates"].numpy(), split)
    return SeriesSet(
        np.split(tensors["values"].numpy(), ends),
        [_name(name) for name in header["series"]],
        list(tensors["starts"].numpy().astype("datetime64[s]")),
        Frequency(**header["frequency"]),
        covariates,
        Layout(**header["layout"]),
    )
