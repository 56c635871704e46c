"""An mmengine metric for box distributions, listed beside ``VOCMetric`` or ``CocoMetric``."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mmdet.registry import METRICS as METRIC_REGISTRY
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger

from aqf_core.errors import UnknownNameError

from ..arrays import as_numpy
from .bootstrap import DEFAULT_REPLICATES
from .data_samples import read_levels, read_truths, warn_of_wrong_frame
from .matching import PROTOCOLS, match_detections
from .pairs import BoxPairs
from .scores import pair_energy, score_pairs
from .summary import Summary, summarise
from .tables import groups_table, metrics_table

DEFAULT_LEVELS = tuple(i / 200 for i in range(1, 200))


@METRIC_REGISTRY.register_module()
class BoxUncertaintyMetric(BaseMetric):
    """CRPS, calibration, coverage, width, Winkler, energy score and NLL of matched boxes.

    Reads ``bboxes, scores, labels, bbox_quantiles (N, K, 4)`` and, where present, ``bbox_std`` and
    ``bbox_samples`` of ``pred_instances``, all in original-image pixels, and the K levels from the
    data sample's ``quantile_levels``. Ground truths must be in original-image pixels as well: load
    annotations after resizing in the test pipeline.

    Results are named ``uncertainty/crps``, ``uncertainty/crps_low`` and ``..._high`` (95 %
    bootstrap interval over images), ``uncertainty/crps_small`` and so on for the ``strict``
    protocol and ``uncertainty/paper_crps`` ... for the paper's. The energy score uses
    ``bbox_samples``; without them the four sides are drawn independently of each other, and the log
    says so.

    Args:
        protocols: Which of ``"strict"`` and ``"paper"`` to report.
        score_threshold: Detections below take no part.
        iou_threshold: Overlap of a pair.
        replicates: Bootstrap replicates.
        seed: Seed of the bootstrap and of independent draws.
        dump_path: Where to write the pairs (``.npz``) for ``tools/analyze.py``.
        classwise: Whether to report classes as well: a table, and ``uncertainty/crps_<class>`` ...
        collect_device: As for mmengine's ``BaseMetric``.
        prefix: As for mmengine's ``BaseMetric``.
    """

    default_prefix = "uncertainty"

    def __init__(
        self,
        protocols: Sequence[str] = PROTOCOLS,
        score_threshold: float = 0.1,
        iou_threshold: float = 0.5,
        replicates: int = DEFAULT_REPLICATES,
        seed: int = 0,
        dump_path: str | None = None,
        classwise: bool = False,
        collect_device: str = "cpu",
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        protocols = [protocols] if isinstance(protocols, str) else list(protocols)
        for name in protocols:
            if name not in PROTOCOLS:
                raise UnknownNameError(f"protocol must be one of {PROTOCOLS}, got {name!r}.")
        if dump_path is not None and not str(dump_path).endswith(".npz"):
            raise ValueError(f"dump_path must end in .npz, got {dump_path!r}.")
        self.protocols = protocols
        self.score_threshold, self.iou_threshold = score_threshold, iou_threshold
        self.replicates, self.seed = replicates, seed
        self.dump_path, self.classwise = dump_path, classwise
        self._warned = False

    def process(self, data_batch: Any, data_samples: Sequence[Mapping[str, Any]]) -> None:
        """Match each image's detections and keep what scoring needs; one record per image."""
        for sample in data_samples:
            self.results.append(self._record(sample))

    def _record(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        found, truths = sample["pred_instances"], read_truths(sample)
        ordinary = ~truths.difficult
        truth_boxes, truth_labels = truths.boxes[ordinary], truths.labels[ordinary]
        self._warned = self._warned or warn_of_wrong_frame(sample, truth_boxes)
        boxes, scores = as_numpy(found["bboxes"]).reshape(-1, 4), as_numpy(found["scores"])
        labels = as_numpy(found["labels"]).astype(int)
        matches = match_detections(
            boxes,
            scores,
            labels,
            truths.boxes,
            truths.labels,
            truths.difficult,
            score_threshold=self.score_threshold,
            iou_threshold=self.iou_threshold,
        )
        chosen = matches.detection
        levels = read_levels(sample, "BoxUncertaintyMetric") or DEFAULT_LEVELS
        quantiles = np.zeros((0, len(levels), 4), np.float32)
        energy, source = np.zeros(0), "none"
        if len(chosen):
            quantiles = as_numpy(found["bbox_quantiles"])[chosen].astype(np.float32)
            samples = as_numpy(found["bbox_samples"])[chosen] if "bbox_samples" in found else None
            # Seeded by the image, so that any split over processes gives the same draws.
            rng = np.random.default_rng([self.seed, zlib.crc32(str(sample["img_id"]).encode())])
            energy, source = pair_energy(
                truth_boxes[matches.truth], np.array(levels), quantiles, samples, rng
            )
        std = as_numpy(found["bbox_std"])[chosen] if "bbox_std" in found else None
        return {
            "image_id": str(sample["img_id"]),
            "levels": np.array(levels) if "quantile_levels" in sample else None,
            "truth_counts": np.bincount(truth_labels, minlength=self._n_classes()),
            "energy_source": source,
            "detection": chosen,
            "label": labels[chosen],
            "truth_index": matches.truth,
            "score": scores[chosen],
            "iou": matches.iou,
            "strict": matches.strict,
            "paper": matches.paper,
            "truth": truth_boxes[matches.truth] if len(chosen) else np.zeros((0, 4)),
            "box": boxes[chosen],
            "quantiles": quantiles,
            "std": np.full((len(chosen), 4), np.nan) if std is None else std,
            "energy": energy,
        }

    def _n_classes(self) -> int:
        return len((self.dataset_meta or {})["classes"])

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Score all pairs, write the dump, log the tables; NaN with one warning without pairs."""
        logger = MMLogger.get_current_instance()
        pairs = collect_pairs(results, (self.dataset_meta or {})["classes"])
        if self.dump_path is not None:
            logger.info(f"wrote {pairs.save(self.dump_path)}")
        if len(pairs) == 0:
            logger.warning(
                f"no detection of score >= {self.score_threshold} overlaps a ground truth of its "
                f"class by {self.iou_threshold}: there is no box uncertainty to evaluate."
            )
        scores = score_pairs(pairs)
        summaries = {
            name: summarise(pairs, name, self.replicates, self.seed, scores)
            for name in self.protocols
        }
        if len(pairs):
            tables = [metrics_table(summaries)]
            for name, summary in summaries.items():
                tables.append(groups_table(summary.sizes, f"{name}, size"))
                if self.classwise:
                    tables.append(groups_table(summary.classes, f"{name}, class"))
            logger.info(
                f"box uncertainty, energy score from {pairs.energy_source} draws:\n"
                + "\n\n".join(tables)
            )
        return flatten(summaries, self.classwise)


def collect_pairs(records: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> BoxPairs:
    """Stack the records of all images; all must use the same quantile levels."""
    levels = [record["levels"] for record in records if record["levels"] is not None]
    if any(not np.array_equal(levels[0], other) for other in levels):
        raise ValueError("predictions of different quantile levels cannot be evaluated together.")
    return BoxPairs.build(levels[0] if levels else DEFAULT_LEVELS, classes, records)


def flatten(summaries: Mapping[str, Summary], classwise: bool = False) -> dict[str, float]:
    """Scalars for logs and hooks: ``strict`` results bare, those of ``paper`` with its prefix."""
    flat: dict[str, float] = {}
    for protocol, summary in summaries.items():
        prefix = "" if protocol == "strict" else f"{protocol}_"
        # mmengine drops integers when it writes a run's metrics.
        flat[f"{prefix}n_pairs"] = float(summary.overall.n_pairs)
        for name, estimate in summary.overall.metrics.items():
            flat.update(estimate.named(f"{prefix}{name}"))
        for row, group in {**summary.sizes, **(summary.classes if classwise else {})}.items():
            for name in ("crps", "calibration_mae", "picp_90", "mpiw_90"):
                flat[f"{prefix}{name}_{row.replace(' ', '_')}"] = group.metrics[name].value
    return flat
