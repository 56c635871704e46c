r"""Detection expected calibration error (D-ECE): does a score of 0.8 mean 8 in 10?

Kueppers et al., *Multivariate Confidence Calibration for Object Detection*, CVPR Workshops 2020:
detections are put into bins of their score and, optionally, of where and how large their box is.
With precision the share of true positives in a bin,

.. math:: D\text{-}ECE = \sum_m \frac{n_m}{n} \lvert precision_m - \overline{score}_m \rvert .

Bins of fewer than ``min_count`` detections say little; they are left out, and n counts what is
left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmdet.registry import METRICS
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger
from numpy.typing import ArrayLike, NDArray

from aqf_core.errors import DomainError, ShapeError, UnknownNameError

from ..arrays import as_numpy
from .data_samples import GroundTruths, image_size, read_truths, warn_of_wrong_frame
from .matching import match_detections
from .tables import markdown_table, number

FloatArray = NDArray[np.float64]

# Which of cx, cy, w, h join the score, and the customary number of bins per dimension.
FEATURES: dict[str, tuple[int, ...]] = {
    "confidence": (),
    "position": (0, 1),
    "size": (2, 3),
    "all": (0, 1, 2, 3),
}
DEFAULT_BINS = {"confidence": 20, "position": 8, "size": 8, "all": 5}


@dataclass(frozen=True)
class CalibrationError:
    """A D-ECE.

    Attributes:
        value: The error; NaN where no bin has enough detections.
        kept: Share of the detections that lie in bins with enough of them.
    """

    value: float
    kept: float


def detection_ece(
    scores: ArrayLike,
    hits: ArrayLike,
    features: ArrayLike | None = None,
    bins: int = 20,
    min_count: int = 1,
) -> CalibrationError:
    """D-ECE with ``bins`` bins of equal width on [0, 1] in every dimension.

    Args:
        scores: ``(N,)`` in [0, 1].
        hits: ``(N,)`` whether each detection is a true positive.
        features: ``(N, F)`` further dimensions; values outside [0, 1] fall into the outermost bins.
        bins: Bins per dimension.
        min_count: Detections that a bin needs.

    Example:
        >>> error = detection_ece([0.9, 0.9, 0.3, 0.3], [1, 0, 0, 1], bins=10)
        >>> round(error.value, 3), error.kept
        (0.3, 1.0)
    """
    score, hit = np.asarray(scores, float), np.asarray(hits, float)
    extra = np.zeros((len(score), 0)) if features is None else np.asarray(features, float)
    if score.shape != hit.shape or extra.shape[:1] != score.shape or extra.ndim != 2:
        raise ShapeError(
            f"scores (N,), hits (N,) and features (N, F) must agree, got {score.shape}, "
            f"{hit.shape} and {extra.shape}."
        )
    if not ((score >= 0) & (score <= 1)).all():
        raise DomainError("scores must lie in [0, 1] to be compared with a precision.")
    if bins < 1 or min_count < 1:
        raise DomainError(f"bins and min_count must be positive, got {bins} and {min_count}.")
    place = np.clip(np.floor(np.column_stack([score, extra]) * bins), 0, bins - 1).astype(int)
    _, bin_of, count = np.unique(place, axis=0, return_inverse=True, return_counts=True)
    bin_of = bin_of.reshape(-1)  # numpy 2.0 returns a column
    gap = np.abs(np.bincount(bin_of, hit, len(count)) - np.bincount(bin_of, score, len(count)))
    enough = count >= min_count
    n = count[enough].sum()
    if n == 0:
        return CalibrationError(float("nan"), 0.0)
    return CalibrationError(float(gap[enough].sum() / n), float(n / len(score)))


def box_features(boxes: ArrayLike, size: tuple[int, int]) -> FloatArray:
    """cx, cy, w, h of xyxy boxes ``(N, 4)`` relative to an image of ``(height, width)``.

    Example:
        >>> box_features([[0, 10, 20, 30]], (40, 80))
        array([[0.125, 0.5  , 0.25 , 0.5  ]])
    """
    corners = np.asarray(boxes, float).reshape(-1, 2, 2) / np.array(size[::-1], float)
    return np.concatenate([corners.mean(1), corners[:, 1] - corners[:, 0]], axis=1)


@METRICS.register_module()
class DetectionECEMetric(BaseMetric):
    """D-ECE of the scores alone and together with position, size, and both.

    Needs no box distribution. A detection is a true positive as in the strict protocol (greedy by
    score, one per object); one that overlaps a difficult object takes no part. All classes count
    together.

    Results are named ``dece/confidence``, ``dece/position``, ``dece/size`` and ``dece/all``, each
    with ``..._kept`` (share of the detections in bins with enough of them), ``dece/precision``,
    ``dece/mean_score`` and ``dece/n_detections``. Less is better.

    Args:
        score_threshold: Detections below take no part.
        iou_threshold: Overlap of a true positive.
        bins: Bins per dimension, by name; a missing name is not evaluated.
        min_count: Detections that a bin needs.
        collect_device: As for mmengine's ``BaseMetric``.
        prefix: As for mmengine's ``BaseMetric``.
    """

    default_prefix = "dece"

    def __init__(
        self,
        score_threshold: float = 0.3,
        iou_threshold: float = 0.5,
        bins: Mapping[str, int] = DEFAULT_BINS,
        min_count: int = 8,
        collect_device: str = "cpu",
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        unknown = [name for name in bins if name not in FEATURES]
        if unknown:
            raise UnknownNameError(f"bins must be named as in {tuple(FEATURES)}, not {unknown[0]}.")
        self.score_threshold, self.iou_threshold = score_threshold, iou_threshold
        self.bins, self.min_count = dict(bins), min_count
        self._warned = False

    def process(self, data_batch: Any, data_samples: Sequence[Mapping[str, Any]]) -> None:
        """Tell true from false positives; one record per image."""
        for sample in data_samples:
            self.results.append(self._record(sample))

    def _record(self, sample: Mapping[str, Any]) -> dict[str, NDArray]:
        found, truths = sample["pred_instances"], read_truths(sample)
        self._warned = self._warned or warn_of_wrong_frame(sample, truths.boxes)
        scores = as_numpy(found["scores"])
        chosen = scores >= self.score_threshold
        scores, labels = scores[chosen], as_numpy(found["labels"])[chosen]
        boxes = as_numpy(found["bboxes"]).reshape(-1, 4)[chosen]
        hit, judged = self._outcomes(boxes, scores, labels, truths)
        features = box_features(boxes, image_size(sample, "DetectionECEMetric"))
        return {"score": scores[judged], "hit": hit[judged], "features": features[judged]}

    def _outcomes(
        self, boxes: NDArray, scores: NDArray, labels: NDArray, truths: GroundTruths
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which detections are true positives, and which are judged at all, ``(N,)`` each."""

        def matched(difficult: NDArray | None) -> tuple[NDArray, NDArray, NDArray]:
            pairs = match_detections(
                boxes,
                scores,
                labels,
                truths.boxes,
                truths.labels,
                difficult,
                score_threshold=self.score_threshold,
                iou_threshold=self.iou_threshold,
            )
            return pairs.detection, pairs.truth, pairs.strict

        hit, judged = np.zeros(len(scores), bool), np.ones(len(scores), bool)
        detection, _, strict = matched(truths.difficult)
        hit[detection[strict]] = True
        detection, truth, _ = matched(None)
        judged[detection[truths.difficult[truth]]] = False
        return hit, judged

    def compute_metrics(self, results: list) -> dict[str, float]:
        """The errors over all images; NaN with one warning without detections."""
        logger = MMLogger.get_current_instance()
        score = np.concatenate([np.zeros(0), *(record["score"] for record in results)])
        hit = np.concatenate([np.zeros(0, bool), *(record["hit"] for record in results)])
        features = np.concatenate([np.zeros((0, 4)), *(record["features"] for record in results)])
        flat = {"n_detections": float(len(score))}
        if len(score) == 0:
            logger.warning(
                f"no detection of score >= {self.score_threshold}: there is no calibration of "
                "scores to evaluate."
            )
        flat["precision"] = float(hit.mean()) if len(hit) else float("nan")
        flat["mean_score"] = float(score.mean()) if len(score) else float("nan")
        for name, bins in self.bins.items():
            chosen = features[:, list(FEATURES[name])]
            error = detection_ece(score, hit, chosen, bins, self.min_count)
            flat[name], flat[f"{name}_kept"] = error.value, error.kept
        rows = [[name, number(value)] for name, value in flat.items()]
        logger.info(
            f"calibration of scores >= {self.score_threshold} at IoU {self.iou_threshold}:\n"
            + markdown_table(["", "value"], rows)
        )
        return flat
