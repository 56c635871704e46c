"""Is one set of predictions better than another? Paired bootstrap on the same ground truths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aqf_core.errors import UnknownNameError

from .bootstrap import image_weights
from .pairs import BoxPairs
from .scores import score_pairs
from .summary import METRICS, group_replicates, protocol_mask


@dataclass(frozen=True)
class PairedDifference:
    """A metric of two models on the same pairs.

    Attributes:
        metric: Name.
        first: Its value for the first model.
        second: Its value for the second.
        difference: ``first - second``.
        low: Lower end of the 95 % bootstrap interval of the difference.
        high: Upper end.
        n_pairs: Pairs compared.
        n_images: Images resampled.
    """

    metric: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    n_pairs: int
    n_images: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low > 0 or self.high < 0

    @classmethod
    def from_replicates(
        cls, metric: str, first: NDArray, second: NDArray, n_pairs: int, n_images: int
    ) -> PairedDifference:
        """From the metric in every replicate, ``(R,)`` each, entry 0 on the data itself."""
        change = first - second
        rest = change[1:][np.isfinite(change[1:])]
        low, high = np.percentile(rest, [2.5, 97.5]) if len(rest) else (np.nan, np.nan)
        return cls(
            metric=metric,
            first=float(first[0]),
            second=float(second[0]),
            difference=float(change[0]),
            low=float(low),
            high=float(high),
            n_pairs=n_pairs,
            n_images=n_images,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "excludes_zero": self.excludes_zero}

    def __str__(self) -> str:
        return (
            f"{self.metric}: {self.first:.4g} - {self.second:.4g} = {self.difference:+.4g} "
            f"[{self.low:+.4g}, {self.high:+.4g}] on {self.n_pairs} pairs of {self.n_images} images"
        )


def common_pairs(
    first: BoxPairs, second: BoxPairs, protocol: str = "strict"
) -> tuple[BoxPairs, BoxPairs]:
    """The pairs of both tables that judge the same ground truth, in the same order.

    A ground truth with several detections (``paper``) is matched in order of falling score. Image
    indices of both results refer to the images the tables share.
    """
    if first.classes != second.classes:
        raise ValueError("the dumps were made with different classes and cannot be compared.")
    shared = [name for name in first.image_ids if name in set(second.image_ids)]
    position = {name: i for i, name in enumerate(shared)}
    keyed = [_keys(pairs, protocol_mask(pairs, protocol), position) for pairs in (first, second)]
    keys = [key for key in keyed[0] if key in keyed[1]]
    if not keys:
        raise ValueError(
            "the dumps have no ground truth in common; were they made on the same data?"
        )
    new_image = np.array([position[key[0]] for key in keys])
    result = []
    for pairs, rows in zip((first, second), keyed, strict=True):
        chosen = pairs.select(np.array([rows[key] for key in keys]))
        columns = {**chosen.__dict__, "image": new_image, "image_ids": tuple(shared)}
        result.append(BoxPairs(**columns))
    return result[0], result[1]


def _keys(
    pairs: BoxPairs, mask: NDArray[np.bool_], position: dict[str, int]
) -> dict[tuple[str, int, int], int]:
    """Row of each pair by image, ground truth and rank among the detections of that truth."""
    rows: dict[tuple[str, int, int], int] = {}
    order = np.argsort(-pairs.score, kind="stable")
    for row in order[mask[order]]:
        image, truth = pairs.image_ids[pairs.image[row]], int(pairs.truth_index[row])
        if image not in position:
            continue
        rank = 0
        while (image, truth, rank) in rows:
            rank += 1
        rows[image, truth, rank] = int(row)
    return dict(sorted(rows.items(), key=lambda item: (position[item[0][0]], item[0][1:])))


def paired_bootstrap(
    first: BoxPairs,
    second: BoxPairs,
    metrics: Sequence[str] = METRICS,
    *,
    protocol: str = "strict",
    replicates: int = 2000,
    seed: int = 0,
) -> dict[str, PairedDifference]:
    """Differences ``first - second`` with 95 % intervals, resampling the same images for both.

    Args:
        first: Pairs of one model.
        second: Pairs of another on the same data; only ground truths matched by both count.
        metrics: Which of ``METRICS``.
        protocol: ``"strict"`` or ``"paper"``.
        replicates: Bootstrap replicates.
        seed: Seed of the bootstrap.
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise UnknownNameError(f"unknown metric {unknown[0]!r}; choose from {METRICS}.")
    tables = common_pairs(first, second, protocol)
    weights = image_weights(len(tables[0].image_ids), replicates, seed)
    one, two = (
        group_replicates(pairs, score_pairs(pairs), weights, protocol == "paper")
        for pairs in tables
    )
    counts = len(tables[0]), len(tables[0].image_ids)
    return {
        name: PairedDifference.from_replicates(name, one[name], two[name], *counts)
        for name in metrics
    }
