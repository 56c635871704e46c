"""Fitted models in files, as safetensors and JSON: numbers and text, never code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from .errors import AQFError
from .recalibration import RECALIBRATIONS, Recalibration, make_recalibration

__all__ = [
    "ModelFileError",
    "pack_recalibration",
    "plain",
    "read",
    "unpack_recalibration",
    "write",
]

FORMAT = 1


class ModelFileError(AQFError, ValueError):
    """A file does not hold a model that this library saved, or was changed since."""


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(
            "saving and loading models needs safetensors; install it with "
            "`pip install safetensors`."
        ) from None
    return safetensors


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name].numpy()
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write(path: str | os.PathLike[str], header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write one file; an existing one is replaced only when the new one is complete."""
    library = _safetensors()
    try:
        text = json.dumps({"format": FORMAT} | header, sort_keys=True)
    except TypeError as error:
        raise TypeError(f"the model cannot be saved: {error}.") from None
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata = {"aqf_estimator": text, "sha256": _digest(text, tensors)}
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder!r} to save the model in.")
    draft = f"{target}.part"
    library.torch.save_file(tensors, draft, metadata=metadata)
    os.replace(draft, target)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file, or a `ModelFileError` in one sentence.

    Raises:
        FileNotFoundError: no such file.
        ModelFileError: not a model, changed, or of a newer format.
    """
    library = _safetensors()
    target = os.fspath(path)
    if not os.path.isfile(target):
        raise FileNotFoundError(f"there is no model file {target!r}.")
    try:
        with library.safe_open(target, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:
        raise ModelFileError(f"{target!r} is not a readable model file ({error}).") from None
    if "aqf_estimator" not in metadata:
        raise ModelFileError(
            f"{target!r} was not written by an estimator or forecaster of aqf_core."
        )
    text = metadata["aqf_estimator"]
    if _digest(text, tensors) != metadata.get("sha256"):
        raise ModelFileError(
            f"{target!r} was changed after it had been saved (its checksum does not match); "
            "use an untouched copy."
        )
    header: dict[str, Any] = json.loads(text)
    if header.get("format") != FORMAT:
        raise ModelFileError(
            f"{target!r} has format {header.get('format')}, this version reads format {FORMAT}; "
            "update aqf."
        )
    return header, tensors


def plain(value: Any) -> Any:
    """A parameter as JSON can hold it; generators of random numbers are not kept."""
    if isinstance(value, (np.random.RandomState, np.random.Generator)):
        return None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value.tolist()]
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def pack_recalibration(recalibration: Recalibration | None) -> tuple[Any, dict[str, Tensor]]:
    """What of a recalibration goes into the header, and its tensors."""
    if recalibration is None:
        return None, {}
    names: dict[Callable[..., Any], str] = {kind: name for name, kind in RECALIBRATIONS.items()}
    header = {
        "name": names[type(recalibration)],
        "per_column": recalibration.per_column,
        "observations": recalibration.observations,
    }
    tensors = {
        f"recalibration.{name}": value
        for name, value in vars(recalibration).items()
        if isinstance(value, Tensor)
    }
    return header, tensors


def unpack_recalibration(header: Any, tensors: dict[str, Tensor]) -> Recalibration | None:
    """The inverse of `pack_recalibration`."""
    if header is None:
        return None
    recalibration = make_recalibration(header["name"], per_column=header["per_column"])
    recalibration.observations = header["observations"]
    for name, value in tensors.items():
        if name.startswith("recalibration."):
            setattr(recalibration, name.removeprefix("recalibration."), value)
    return recalibration
