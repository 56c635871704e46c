"""Tables of a scored data set: everything, per size, per class, under both protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aqf_core.errors import UnknownNameError

from .bootstrap import DEFAULT_REPLICATES, Estimate, image_weights, replicate_means
from .matching import PROTOCOLS
from .pairs import BoxPairs
from .scores import PER_COORDINATE, SIZES, PairScores, score_pairs, size_mask

MEAN_METRICS = tuple(name for name in PER_COORDINATE if name != "pit")
METRICS = (*MEAN_METRICS, "energy", "calibration_mae", "calibration_mae_pooled")
Replicates = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Group:
    """Metrics of a set of pairs."""

    n_pairs: int
    metrics: dict[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; what cannot be computed is null."""

        def number(value: float) -> float | None:
            return value if np.isfinite(value) else None

        return {
            "n_pairs": self.n_pairs,
            **{
                name: {key: number(getattr(item, key)) for key in ("value", "low", "high")}
                for name, item in self.metrics.items()
            },
        }


@dataclass(frozen=True)
class Summary:
    """One protocol's tables: all pairs, by object size, by class."""

    overall: Group
    sizes: dict[str, Group]
    classes: dict[str, Group]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values for JSON."""
        return {
            "all": self.overall.to_dict(),
            "size": {name: group.to_dict() for name, group in self.sizes.items()},
            "class": {name: group.to_dict() for name, group in self.classes.items()},
        }


def metric_replicates(
    scores: PairScores, image: NDArray[np.int64], weights: NDArray[np.float64]
) -> Replicates:
    """Every metric in every bootstrap replicate: name -> ``(R,)``, entry 0 on the data itself.

    Calibration MAE is the mean over levels q of ``|P(y <= Q(q)) - q|``, per coordinate and then
    averaged, or with the four coordinates pooled.
    """
    result: Replicates = {}
    stacked = np.stack([scores.per_coordinate[name].mean(1) for name in MEAN_METRICS], axis=1)
    stacked = np.concatenate([stacked, scores.energy[:, None]], axis=1)
    means = replicate_means(stacked, image, weights)
    for column, name in enumerate((*MEAN_METRICS, "energy")):
        result[name] = means[:, column]
    share = replicate_means(scores.below.astype(float), image, weights)  # (R, L, 4)
    wanted = scores.calibration_levels
    result["calibration_mae"] = np.abs(share - wanted[None, :, None]).mean((1, 2))
    result["calibration_mae_pooled"] = np.abs(share.mean(2) - wanted).mean(1)
    return result


def group_replicates(
    pairs: BoxPairs, scores: PairScores, weights: NDArray[np.float64], by_class: bool
) -> Replicates:
    """Metrics of all pairs together, or the mean over the classes that have pairs."""
    if not by_class:
        return metric_replicates(scores, pairs.image, weights)
    parts = [
        metric_replicates(scores.select(mask), pairs.image[mask], weights)
        for mask in (pairs.label == label for label in np.unique(pairs.label))
    ]
    if not parts:
        return metric_replicates(scores, pairs.image, weights)
    averaged: Replicates = {}
    for name in METRICS:
        table = np.stack([part[name] for part in parts])
        present = np.isfinite(table)
        with np.errstate(invalid="ignore"):
            averaged[name] = np.where(present, table, 0).sum(0) / present.sum(0)
    return averaged


def _group(
    pairs: BoxPairs,
    scores: PairScores,
    mask: NDArray[np.bool_],
    weights: NDArray[np.float64],
    by_class: bool,
) -> Group:
    chosen = group_replicates(pairs.select(mask), scores.select(mask), weights, by_class)
    estimates = {
        name: Estimate.from_replicates(values, reflect=name.startswith("calibration"))
        for name, values in chosen.items()
    }
    return Group(int(mask.sum()), estimates)


def protocol_mask(pairs: BoxPairs, protocol: str) -> NDArray[np.bool_]:
    """Which pairs count under a protocol."""
    if protocol not in PROTOCOLS:
        raise UnknownNameError(f"protocol must be one of {PROTOCOLS}, got {protocol!r}.")
    mask: NDArray[np.bool_] = getattr(pairs, protocol)
    return mask


def summarise(
    pairs: BoxPairs,
    protocol: str = "strict",
    replicates: int = DEFAULT_REPLICATES,
    seed: int = 0,
    scores: PairScores | None = None,
) -> Summary:
    """All tables of one protocol, with 95 % bootstrap intervals over images.

    The ``paper`` protocol counts duplicates and averages over classes. Everything is NaN without
    pairs.

    Args:
        pairs: Matched detections.
        protocol: ``"strict"`` or ``"paper"``.
        replicates: Bootstrap replicates; 0 for none.
        seed: Seed of the bootstrap.
        scores: :func:`score_pairs` of ``pairs``, where already known.
    """
    mask = protocol_mask(pairs, protocol)
    scores = score_pairs(pairs) if scores is None else scores
    weights = image_weights(len(pairs.image_ids), replicates, seed)
    averaged = protocol == "paper"

    def group(extra: NDArray[np.bool_] | bool, by_class: bool) -> Group:
        return _group(pairs, scores, mask & extra, weights, by_class)

    return Summary(
        overall=group(True, averaged),
        sizes={size: group(size_mask(pairs, size), averaged) for size in SIZES},
        classes={
            name: group(pairs.label == label, False) for label, name in enumerate(pairs.classes)
        },
    )
