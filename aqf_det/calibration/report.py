"""What calibration changes, measured on boxes it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aqf_core.errors import LevelError
from aqf_core.metrics import calibration_mae_floor, calibration_mae_from_pit
from aqf_core.normal import base_to_level

from ..evaluation.scores import COVERAGES
from ..evaluation.tables import markdown_table, number
from .box_calibration import BoxCalibration
from .held_out import HeldOutBoxes

#: Coverage at which conformal statements are checked.
CONFORMAL_COVERAGE = 0.9


@dataclass(frozen=True)
class CrossValidation:
    """Held-out boxes before calibration and after one that was fitted to other images.

    Attributes:
        before: (n, 4) base values.
        after: (n, 4) base values under the calibrated distributions.
        group: (n,) size group.
        in_interval: (n, 4) whether the conformal interval of 90 % holds the side; NaN where too few
            boxes were left to state one.
        in_band: (n,) whether the conformal inner and outer box enclose the object; likewise.
    """

    before: Tensor
    after: Tensor
    group: Tensor
    in_interval: Tensor
    in_band: Tensor


def cross_validate(
    boxes: HeldOutBoxes,
    edges: Sequence[float] = (),
    kind: str = "auto",
    folds: int = 5,
    seed: int = 0,
) -> CrossValidation:
    """Calibrate each of ``folds`` parts of the images by all others; arguments as for `store`."""
    if folds < 2:
        raise ValueError(f"cross-validation needs at least 2 folds, got {folds}.")
    fold = image_folds(boxes.image, folds, seed)
    z, n = boxes.base_values, len(boxes)
    after, group = torch.zeros_like(z), torch.zeros(n, dtype=torch.long)
    in_interval, in_band = torch.full((n, 4), torch.nan), torch.full((n,), torch.nan)
    for part in range(folds):
        mine, others = fold == part, boxes.select(fold != part)
        if not bool(mine.any()):
            continue
        calibration = BoxCalibration()
        calibration.store(others.base_values, others.sizes, edges, kind)
        group[mine] = calibration.group_of(boxes.sizes[mine])
        for g, recalibration in enumerate(calibration.maps()):
            rows = mine & (group == g)
            after[rows] = recalibration.to_base(z[rows])[0]
        conformal = calibration.conformal()
        try:
            low, high = conformal.interval(CONFORMAL_COVERAGE, group[mine]).unbind(1)
            in_interval[mine] = ((low <= z[mine]) & (z[mine] <= high)).float()
            low, high = conformal.band(CONFORMAL_COVERAGE, group[mine]).unbind(1)
            in_band[mine] = ((low <= z[mine]) & (z[mine] <= high)).all(-1).float()
        except LevelError:
            continue
    return CrossValidation(z, after, group, in_interval, in_band)


def image_folds(image: Tensor, folds: int, seed: int = 0) -> Tensor:
    """The fold (n,) of every row; rows of one image share it."""
    images, position = image.unique(return_inverse=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return (order % folds)[position]


def calibration_table(result: CrossValidation, edges: Sequence[float] = ()) -> str:
    """A Markdown table: calibration error and coverage before and after, overall and per group."""
    everything = torch.ones(len(result.group), dtype=torch.bool)
    groups = [("all", everything)]
    if len(edges):
        bounds = ["0", *(f"{edge:g}" for edge in edges), "inf"]
        groups += [
            (f"{low} ... {high} px", result.group == g)
            for g, (low, high) in enumerate(zip(bounds, bounds[1:], strict=False))
        ]
    rows = []
    for name, mask in groups:
        for when, z in (("before", result.before), ("after", result.after)):
            rows.append([name, when, str(int(mask.sum())), *_scores(z[mask])])
    header = ["boxes", "calibration", "number", "calibration MAE", "floor"]
    header += [f"{round(100 * c)} % covers" for c in COVERAGES]
    table = markdown_table(header, rows)
    share, whole = (float(x.mean()) for x in (result.in_interval, result.in_band))
    return (
        f"{table}\n\nConformal at {CONFORMAL_COVERAGE:.0%}: intervals of one side hold it in "
        f"{number(share)}, inner and outer box enclose the object in {number(whole)} of the boxes."
    )


def _scores(z: Tensor) -> list[str]:
    """Calibration error (mean over the sides), what a perfect model would have, and coverage."""
    if len(z) == 0:
        return ["-"] * (2 + len(COVERAGES))
    pit = base_to_level(z.double())
    error = torch.stack([calibration_mae_from_pit(column) for column in pit.T]).mean()
    covers = [float(((2 * pit - 1).abs() <= c).double().mean()) for c in COVERAGES]
    return [number(float(error)), number(calibration_mae_floor(len(z))), *map(number, covers)]
