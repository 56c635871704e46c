"""Predicted against known distributions of hidden sides, on data that stores the truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aqf_core.metrics import crps_from_quantiles

from ..datasets.hidden_side import HiddenSideTruth, read_hidden_sides
from ..quantile_tables import quantiles_at
from .bootstrap import Estimate, image_weights, replicate_means
from .comparison import PairedDifference, common_pairs
from .pairs import BoxPairs
from .scores import CALIBRATION_LEVELS, score_pairs

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class HiddenSides:
    """The H hidden sides among the strict pairs of a data set.

    Attributes:
        row: ``(H,)`` row of the pair in its table.
        coordinate: ``(H,)`` which of x1, y1, x2, y2 is hidden.
        image: ``(H,)`` image index.
        n_images: Images of the data set.
        label: ``(H,)`` class.
        predicted: ``(H, 99)`` predicted quantiles at .01 ... .99 as shares of the largest
            extension, counted outwards from the occluder's edge.
        true: ``(H, 99)`` the true ones, likewise.
        extent: ``(H,)`` largest extension in pixels.
        crps: ``(H,)`` of the prediction, px.
        oracle_crps: ``(H,)`` of the true distribution on the same observation.
        visible_crps: ``(P,)`` mean CRPS of the visible sides of every pair.
    """

    row: NDArray[np.int64]
    coordinate: NDArray[np.int64]
    image: NDArray[np.int64]
    n_images: int
    label: NDArray[np.int64]
    predicted: FloatArray
    true: FloatArray
    extent: FloatArray
    crps: FloatArray
    oracle_crps: FloatArray
    visible_crps: FloatArray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def distance(self) -> FloatArray:
        """``(H,)`` mean absolute difference of predicted and true quantiles, px (Wasserstein-1)."""
        return np.abs(self.predicted - self.true).mean(1) * self.extent

    def summary(self, replicates: int = 1000, seed: int = 0) -> dict[str, Estimate]:
        """Means over the hidden sides, with 95 % bootstrap intervals over images.

        ``quantile_error_px``: distance of predicted and true quantiles; ``quantile_error_share``:
        the same divided by the mean absolute deviation of the truth from its median;
        ``crps_hidden`` and ``crps_oracle``: of the prediction and of the truth; ``crps_excess``:
        their ratio minus 1.
        """
        weights = image_weights(self.n_images, replicates, seed)
        spread = np.abs(self.true - np.median(self.true, axis=1, keepdims=True)).mean(1)
        columns = [self.distance, spread * self.extent, self.crps, self.oracle_crps]
        means = replicate_means(np.stack(columns, axis=1), self.image, weights)
        values = {
            "quantile_error_px": means[:, 0],
            "quantile_error_share": means[:, 0] / means[:, 1],
            "crps_hidden": means[:, 2],
            "crps_oracle": means[:, 3],
            "crps_excess": means[:, 2] / means[:, 3] - 1,
        }
        result = {name: Estimate.from_replicates(value) for name, value in values.items()}
        result["crps_visible"] = Estimate(float(np.mean(self.visible_crps)))
        return result


def hidden_sides(pairs: BoxPairs, annotation_dir: str | Path) -> HiddenSides:
    """Look up the truth about every hidden side of the strict pairs.

    Args:
        pairs: Matched detections on a data set of :mod:`aqf_det.datasets.demo_scenes`.
        annotation_dir: Its ``Annotations`` directory.
    """
    annotation_dir = Path(annotation_dir)
    if not annotation_dir.is_dir():
        raise FileNotFoundError(f"annotation directory {annotation_dir} does not exist.")
    pairs = pairs.select(pairs.strict)
    found: list[tuple[int, HiddenSideTruth]] = []
    cache: dict[int, list] = {}
    for index, image in enumerate(pairs.image.tolist()):
        if image not in cache:
            cache[image] = read_hidden_sides(annotation_dir / f"{pairs.image_ids[image]}.xml")
        for box, truth in cache[image]:
            if truth is not None and np.abs(box - pairs.truth[index]).max() < 0.05:
                found.append((index, truth))
    row = np.array([index for index, _ in found], dtype=np.int64)
    coordinate = np.array([truth.coordinate for _, truth in found], dtype=np.int64)
    crps = score_pairs(pairs).per_coordinate["crps"]
    visible = np.ones((len(pairs), 4), bool)
    visible[row, coordinate] = False
    return HiddenSides(
        row=row,
        coordinate=coordinate,
        image=pairs.image[row],
        n_images=len(pairs.image_ids),
        label=pairs.label[row],
        predicted=_predicted_shares(pairs, found),
        true=_stack([truth.law.quantile(CALIBRATION_LEVELS) for _, truth in found]),
        extent=np.array([truth.extent for _, truth in found]),
        crps=crps[row, coordinate],
        oracle_crps=_oracle_crps(pairs, found),
        visible_crps=np.where(visible, crps, 0).sum(1) / visible.sum(1),
    )


def _stack(rows: list[FloatArray]) -> FloatArray:
    return np.stack(rows) if rows else np.zeros((0, len(CALIBRATION_LEVELS)))


def _predicted_shares(pairs: BoxPairs, found: list[tuple[int, HiddenSideTruth]]) -> FloatArray:
    """Predicted quantiles of the extension behind the edge, in shares of the largest one."""
    shares = []
    for row, truth in found:
        table = quantiles_at(pairs.levels, pairs.quantiles[row : row + 1], CALIBRATION_LEVELS)
        outward = truth.direction * (table[0, :, truth.coordinate] - truth.edge) / truth.extent
        shares.append(outward if truth.direction > 0 else outward[::-1])
    return _stack(shares)


def _oracle_crps(pairs: BoxPairs, found: list[tuple[int, HiddenSideTruth]]) -> FloatArray:
    """CRPS of the true distributions, through the same quantile levels as the predictions."""
    if not found:
        return np.zeros(0)
    table = np.stack([truth.quantile(pairs.levels) for _, truth in found])
    y = np.array([pairs.truth[row, truth.coordinate] for row, truth in found])
    return crps_from_quantiles(pairs.levels, table, y, reduction="none")


def paired_hidden_crps(
    first: BoxPairs,
    second: BoxPairs,
    annotation_dir: str | Path,
    replicates: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """CRPS of two models on the same hidden sides, with a 95 % interval over images."""
    tables = common_pairs(first, second)
    one, two = (hidden_sides(pairs, annotation_dir) for pairs in tables)
    weights = image_weights(one.n_images, replicates, seed)
    a, b = (replicate_means(item.crps, item.image, weights) for item in (one, two))
    return PairedDifference.from_replicates("crps_hidden", a, b, len(one), one.n_images)
