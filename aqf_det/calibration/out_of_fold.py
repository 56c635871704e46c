"""Train a branch and calibrate it with the same images, each image judged by others.

The images are dealt into folds. For every fold a branch is trained on the other folds and predicts
the images of this one, so all base values are those of unseen images; the branch that is kept is
trained on all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from ..engine.cached_branch import CellCache, image_code, train_branch
from ..models.detector import FlowDetector
from ..models.prediction import Detections
from .held_out import HeldOutBoxes, collect_held_out
from .run import usable_edges


class OutOfFold:
    """Looks at each image with the detector that was not trained on it.

    Args:
        detectors: One for each fold.
    """

    def __init__(self, detectors: Sequence[FlowDetector]) -> None:
        self.detectors = list(detectors)
        self.training = False

    @property
    def data_preprocessor(self) -> Any:
        """That of all detectors."""
        return self.detectors[0].data_preprocessor

    def train(self, mode: bool = True) -> None:
        """Set the mode of all detectors."""
        for detector in self.detectors:
            detector.train(mode)

    def eval(self) -> None:
        """Set all detectors to evaluation mode."""
        self.train(False)

    def detect(self, batch_inputs: Tensor, samples: Sequence[Any]) -> list[Detections]:
        """What is found in every image."""
        found = []
        for number, sample in enumerate(samples):
            mine = self.detectors[image_code(sample.metainfo) % len(self.detectors)]
            found += mine.detect(batch_inputs[number : number + 1], [sample])
        return found


def train_folds(
    detector: FlowDetector, cells: CellCache, steps: int, folds: int, **training: Any
) -> list[FlowDetector]:
    """Copies of a detector, the branch of each trained without the images of its fold.

    The fold of an image is its :func:`~aqf_det.engine.cached_branch.image_code` modulo the number
    of folds.

    Args:
        detector: Stays as it is.
        cells: Cached features.
        steps: Optimisation steps of every branch.
        folds: Their number, 2 or more.
        **training: Further options of :func:`~aqf_det.engine.cached_branch.train_branch`.
    """
    if folds < 2:
        raise ValueError(f"out-of-fold calibration needs at least 2 folds, got {folds}.")
    if cells.image is None:
        raise ValueError("these cached features do not know their images; collect them again.")
    fold = cells.image % folds
    if len(fold.unique()) < folds:
        raise ValueError(f"too few images for {folds} folds: some of them are empty.")
    members = []
    for number in range(folds):
        member = copy.deepcopy(detector)
        train_branch(member, cells, steps, rows=(fold != number).nonzero().flatten(), **training)
        members.append(member)
    return members


def train_calibrated_branch(
    detector: FlowDetector,
    cells: CellCache,
    loader: Iterable[Any],
    steps: int,
    folds: int = 5,
    score_threshold: float = 0.1,
    iou_threshold: float = 0.5,
    edges: Sequence[float] = (),
    kind: str = "auto",
    **training: Any,
) -> HeldOutBoxes:
    """Train the branch of a detector on cached features and calibrate it out of fold.

    Args:
        detector: With the trunk that the features come from; its branch is trained and its
            calibration set.
        cells: Features of held-out images (the trunk was not trained on them).
        loader: The same images with a test pipeline.
        steps: Optimisation steps of every branch.
        folds: Number of folds; ``folds + 1`` branches are trained.
        score_threshold: As for :func:`~aqf_det.calibration.held_out.collect_held_out`.
        iou_threshold: Likewise.
        edges: As for :func:`~aqf_det.calibration.run.calibrate`.
        kind: Likewise.
        **training: Further options of :func:`~aqf_det.engine.cached_branch.train_branch`.

    Returns:
        The boxes behind the calibration, each predicted by a branch that did not know its image.
    """
    members = train_folds(detector, cells, steps, folds, **training)
    boxes = collect_held_out(OutOfFold(members), loader, score_threshold, iou_threshold)
    train_branch(detector, cells, steps, **training)
    used = usable_edges(boxes.sizes, edges)
    head = detector.flow_head
    head.calibration.store(boxes.base_values, boxes.sizes, used, kind, head.options.settings)
    return boxes
