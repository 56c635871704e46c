"""Matched detections of a whole data set: the table every score is computed from."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aqf_core.errors import LevelError, NonFiniteError, ShapeError

from ..quantile_tables import check_levels

DUMP_KIND = "aqf box pairs 1"
_COLUMNS = {  # per-pair arrays: trailing shape and type
    "image": ((), np.int64),
    "label": ((), np.int64),
    "truth_index": ((), np.int64),
    "score": ((), np.float64),
    "iou": ((), np.float64),
    "strict": ((), np.bool_),
    "paper": ((), np.bool_),
    "truth": ((4,), np.float64),
    "box": ((4,), np.float64),
    "quantiles": ((None, 4), np.float32),
    "std": ((4,), np.float64),
    "energy": ((), np.float64),
}


class WrongDumpError(ValueError):
    """A file that is no table of box pairs."""


@dataclass(frozen=True)
class BoxPairs:
    """P pairs of a detection and the ground truth it is judged by, in original-image pixels.

    Attributes:
        levels: ``(K,)`` increasing levels of ``quantiles``.
        classes: Names of the C classes.
        image_ids: All evaluated images, also those without a pair.
        truth_counts: ``(C,)`` ground truths that are not difficult.
        energy_source: ``"samples"`` (joint box samples) or ``"independent"`` (draws of the four
            marginals).
        image: ``(P,)`` index into ``image_ids``.
        label: ``(P,)`` class.
        truth_index: ``(P,)`` index of the ground truth within its image.
        score: ``(P,)`` of the detection.
        iou: ``(P,)`` overlap of point box and ground truth.
        strict: ``(P,)`` whether the pair counts under the strict protocol.
        paper: ``(P,)`` whether it counts under the paper's.
        truth: ``(P, 4)`` ground truth, xyxy.
        box: ``(P, 4)`` point prediction.
        quantiles: ``(P, K, 4)``.
        std: ``(P, 4)`` predicted standard deviations.
        energy: ``(P,)`` energy score of the four coordinates together.
    """

    levels: NDArray[np.float64]
    classes: tuple[str, ...]
    image_ids: tuple[str, ...]
    truth_counts: NDArray[np.int64]
    energy_source: str
    image: NDArray[np.int64]
    label: NDArray[np.int64]
    truth_index: NDArray[np.int64]
    score: NDArray[np.float64]
    iou: NDArray[np.float64]
    strict: NDArray[np.bool_]
    paper: NDArray[np.bool_]
    truth: NDArray[np.float64]
    box: NDArray[np.float64]
    quantiles: NDArray[np.float32]
    std: NDArray[np.float64]
    energy: NDArray[np.float64]

    def __post_init__(self) -> None:
        if len(check_levels(self.levels)) < 2:
            raise LevelError("box quantiles are scored at two levels or more.")
        count = len(self.image)
        for name, (tail, _) in _COLUMNS.items():
            shape = (count, *(len(self.levels) if size is None else size for size in tail))
            if getattr(self, name).shape != shape:
                raise ShapeError(f"{name} must be {shape}, got {getattr(self, name).shape}.")
        if not np.isfinite(self.quantiles).all():
            raise NonFiniteError("predicted box quantiles contain NaN or infinite values.")

    def __len__(self) -> int:
        return len(self.image)

    def select(self, index: NDArray) -> BoxPairs:
        """The pairs picked by a mask or by indices; images and counts stay."""
        return replace(self, **{name: getattr(self, name)[index] for name in _COLUMNS})

    @classmethod
    def build(
        cls,
        levels: Sequence[float] | NDArray,
        classes: Sequence[str],
        images: Sequence[Mapping[str, Any]],
    ) -> BoxPairs:
        """Stack records of images: ``image_id, truth_counts, energy_source`` and the columns."""
        columns: dict[str, Any] = {}
        for name, (tail, dtype) in _COLUMNS.items():
            shape = tuple(len(levels) if size is None else size for size in tail)
            parts: list[NDArray] = [np.zeros((0, *shape), dtype)]
            if name == "image":
                counts = [len(record["label"]) for record in images]
                parts.append(np.repeat(np.arange(len(images)), counts))
            else:
                parts += [np.asarray(record[name], dtype).reshape(-1, *shape) for record in images]
            columns[name] = np.concatenate(parts).astype(dtype, copy=False)
        sources = {record["energy_source"] for record in images if len(record["label"])}
        truths = [np.zeros(len(classes), np.int64), *(item["truth_counts"] for item in images)]
        return cls(
            levels=np.asarray(levels, float),
            classes=tuple(classes),
            image_ids=tuple(str(record["image_id"]) for record in images),
            truth_counts=np.sum(truths, axis=0),
            energy_source=" and ".join(sorted(sources)) or "none",
            **columns,
        )

    def save(self, path: str | Path) -> Path:
        """Write an ``.npz`` (no pickles inside); the file appears only once it is complete."""
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"a dump of box pairs is an .npz file, got {path}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {
            "kind": DUMP_KIND,
            "classes": self.classes,
            "image_ids": self.image_ids,
            "energy_source": self.energy_source,
        }
        partial = path.with_name(path.stem + ".partial.npz")
        np.savez_compressed(
            partial,
            header=np.array(json.dumps(header)),
            levels=self.levels,
            truth_counts=self.truth_counts,
            **{name: getattr(self, name) for name in _COLUMNS},
        )
        partial.replace(path)
        return path

    @classmethod
    def load(cls, path: str | Path) -> BoxPairs:
        """Read what :meth:`save` wrote."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"dump {path} does not exist.")
        try:
            with np.load(path, allow_pickle=False) as data:
                header = json.loads(str(data["header"]))
                if header["kind"] != DUMP_KIND:
                    raise KeyError("kind")
                arrays = {name: data[name] for name in ("levels", "truth_counts", *_COLUMNS)}
        except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise WrongDumpError(
                f"{path} is no dump of box pairs; write one with "
                "BoxUncertaintyMetric(dump_path='...npz')."
            ) from error
        return cls(
            classes=tuple(header["classes"]),
            image_ids=tuple(header["image_ids"]),
            energy_source=header["energy_source"],
            **arrays,
        )
