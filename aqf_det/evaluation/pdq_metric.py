"""PDQ as an mmengine metric, listed beside ``VOCMetric`` or ``CocoMetric``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mmdet.registry import METRICS
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger
from numpy.typing import NDArray

from aqf_core.errors import NonFiniteError

from ..arrays import as_numpy
from .bootstrap import DEFAULT_REPLICATES
from .data_samples import image_size, read_levels, read_truths, warn_of_wrong_frame
from .detection_quality import (
    COUNTS,
    judge_image,
    pairwise_qualities,
    pixel_probabilities,
    total_quality,
)
from .tables import interval, markdown_table

CERTAIN_LEVELS = (1 / 3, 2 / 3)


@METRICS.register_module()
class PDQMetric(BaseMetric):
    """Probability-based detection quality (Hall et al. 2020); see :mod:`.detection_quality`.

    Reads ``bboxes, scores, labels, bbox_quantiles (N, K, 4)`` of ``pred_instances`` in
    original-image pixels, and the K levels from the data sample's ``quantile_levels``.

    Results are named ``pdq/pdq``, ``pdq/pairwise``, ``pdq/spatial``, ``pdq/label``,
    ``pdq/foreground``, ``pdq/background``, each with ``..._low`` and ``..._high`` (95 % bootstrap
    interval over images), and ``pdq/tp``, ``pdq/fp``, ``pdq/fn``. More is better.

    Args:
        score_threshold: Detections below take no part. Every false positive costs the same
            whatever its score, so this is the working point that is judged.
        point_boxes: Whether to judge the point boxes as if they were certain, which needs no
            quantiles: what PDQ gives a detector that does not know how sure it is.
        replicates: Bootstrap replicates.
        seed: Seed of the bootstrap.
        collect_device: As for mmengine's ``BaseMetric``.
        prefix: As for mmengine's ``BaseMetric``.
    """

    default_prefix = "pdq"

    def __init__(
        self,
        score_threshold: float = 0.5,
        point_boxes: bool = False,
        replicates: int = DEFAULT_REPLICATES,
        seed: int = 0,
        collect_device: str = "cpu",
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        if not 0 <= score_threshold < 1:
            raise ValueError(f"score_threshold must lie in [0, 1), got {score_threshold}.")
        self.score_threshold, self.point_boxes = score_threshold, point_boxes
        self.replicates, self.seed = replicates, seed
        self._warned = False

    def process(self, data_batch: Any, data_samples: Sequence[Mapping[str, Any]]) -> None:
        """Judge each image; one record of sums and counts per image."""
        for sample in data_samples:
            self.results.append(self._record(sample))

    def _record(self, sample: Mapping[str, Any]) -> dict[str, float]:
        found, truths = sample["pred_instances"], read_truths(sample)
        self._warned = self._warned or warn_of_wrong_frame(sample, truths.boxes)
        scores = as_numpy(found["scores"])
        chosen = scores >= self.score_threshold
        levels, quantiles = self._tables(sample, chosen)
        if not np.isfinite(quantiles).all():
            raise NonFiniteError("predicted box quantiles contain NaN or infinite values.")
        table = pairwise_qualities(
            pixel_probabilities(levels, quantiles, image_size(sample, "PDQMetric")),
            scores[chosen],
            as_numpy(found["labels"])[chosen],
            truths.boxes,
            truths.labels,
        )
        return judge_image(table, truths.difficult)

    def _tables(
        self, sample: Mapping[str, Any], chosen: NDArray[np.bool_]
    ) -> tuple[tuple[float, ...], NDArray]:
        """Levels ``(K,)`` and quantiles ``(N, K, 4)`` of the chosen detections."""
        found = sample["pred_instances"]
        if self.point_boxes:
            boxes = as_numpy(found["bboxes"]).reshape(-1, 4)[chosen]
            return CERTAIN_LEVELS, np.repeat(boxes[:, None], 2, axis=1)
        levels = read_levels(sample, "PDQMetric")
        if levels is None or not chosen.any():
            return CERTAIN_LEVELS, np.zeros((0, 2, 4))
        return levels, as_numpy(found["bbox_quantiles"])[chosen]

    def compute_metrics(self, results: list) -> dict[str, float]:
        """PDQ and its parts over all images; NaN with one warning where nothing was judged."""
        logger = MMLogger.get_current_instance()
        totals = total_quality(results, self.replicates, self.seed)
        if not np.isfinite(totals["pdq"].value):
            logger.warning(
                f"no ground truth and no detection of score >= {self.score_threshold}: there is "
                "no detection quality to evaluate."
            )
        rows = [[name, interval(estimate)] for name, estimate in totals.items()]
        logger.info(
            f"detection quality, scores >= {self.score_threshold}:\n"
            + markdown_table(["", "value"], rows)
        )
        flat: dict[str, float] = {}
        for name, estimate in totals.items():
            flat.update({name: estimate.value} if name in COUNTS else estimate.named(name))
        return flat
