"""Scores of a study's rows: means over seeds, with intervals over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..evaluation import BoxPairs, Estimate, PairedDifference
from ..evaluation.bootstrap import image_weights
from ..evaluation.scores import SIZES, score_pairs, size_mask
from ..evaluation.summary import Replicates, metric_replicates


@dataclass(frozen=True)
class Row:
    """One row of a table: a variant with all its seeds, on the same test boxes as every other row.

    Attributes:
        title: In tables.
        seeds: Test pairs of each seed.
        gaussian: Whether the distribution is a Gaussian.
        replicates: Bootstrap replicates.
    """

    title: str
    seeds: Sequence[BoxPairs]
    gaussian: bool
    replicates: int

    @cached_property
    def tables(self) -> dict[str, Replicates]:
        """For all boxes and per size: metrics in every replicate, mean over seeds.

        Every row resamples the same images, so differences of rows are paired.
        """
        parts: dict[str, list[Replicates]] = {}
        for pairs in self.seeds:
            strict = pairs.select(pairs.strict)
            scores = score_pairs(strict)
            weights = image_weights(len(pairs.image_ids), self.replicates, seed=0)
            for name in ("all", *SIZES):
                mask = np.ones(len(strict), bool) if name == "all" else size_mask(strict, name)
                part = metric_replicates(scores.select(mask), strict.image[mask], weights)
                parts.setdefault(name, []).append(part)
        return {
            name: {m: np.mean([part[m] for part in group], axis=0) for m in group[0]}
            for name, group in parts.items()
        }

    def estimate(self, metric: str, size: str = "all") -> Estimate:
        """A metric, mean over seeds, with its 95 % interval over images."""
        values = self.tables[size][metric]
        return Estimate.from_replicates(values, reflect=metric.startswith("calibration"))

    def value(self, metric: str, size: str = "all") -> float:
        """A metric, mean over seeds."""
        return float(self.tables[size][metric][0])

    def over_seeds(self, metric: str) -> NDArray[np.float64]:
        """A metric of each seed."""
        return np.array([Row(self.title, [p], self.gaussian, 0).value(metric) for p in self.seeds])

    def minus(self, other: Row, metric: str) -> PairedDifference:
        """Paired difference of a metric, resampling the same images for both rows."""
        strict = self.seeds[0].strict
        return PairedDifference.from_replicates(
            metric,
            self.tables["all"][metric],
            other.tables["all"][metric],
            n_pairs=int(strict.sum()),
            n_images=len(self.seeds[0].image_ids),
        )


def check_same_boxes(rows: Sequence[Row]) -> None:
    """Raise unless all rows judge bit for bit the same boxes: differences would not be paired."""
    first = rows[0].seeds[0]
    for row in rows:
        for pairs in row.seeds:
            for name in ("box", "score", "truth", "strict"):
                if not np.array_equal(getattr(pairs, name), getattr(first, name)):
                    raise AssertionError(f"the row {row.title!r} has other boxes.")
