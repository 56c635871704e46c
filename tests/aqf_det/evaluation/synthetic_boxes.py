"""Data samples as a detector would give them, with errors of a known law."""

from __future__ import annotations

import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from scipy.stats import norm

from aqf_det.evaluation.box_uncertainty_metric import DEFAULT_LEVELS, BoxUncertaintyMetric

CLASSES = ("cat", "dog", "cow")
Z = norm.ppf(DEFAULT_LEVELS)


def data_sample(image_id, truths, truth_labels, boxes, scores, labels, quantiles=None, **extra):
    """One image's annotations and predictions, as dict like mmengine's evaluator passes them."""
    sample = DetDataSample(
        metainfo={"img_id": image_id, "ori_shape": (500, 500), "quantile_levels": DEFAULT_LEVELS}
    )
    if extra.pop("no_levels", False):
        sample = DetDataSample(metainfo={"img_id": image_id, "ori_shape": (500, 500)})
    sample.gt_instances = InstanceData(
        bboxes=torch.as_tensor(np.reshape(truths, (-1, 4)), dtype=torch.float32),
        labels=torch.as_tensor(truth_labels, dtype=torch.long),
    )
    sample.ignored_instances = InstanceData(
        bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
    )
    fields = {
        "bboxes": torch.as_tensor(np.reshape(boxes, (-1, 4)), dtype=torch.float32),
        "scores": torch.as_tensor(scores, dtype=torch.float32),
        "labels": torch.as_tensor(labels, dtype=torch.long),
        **extra,
    }
    if quantiles is not None:
        fields["bbox_quantiles"] = torch.as_tensor(quantiles, dtype=torch.float32)
    sample.pred_instances = InstanceData(**fields)
    return sample.to_dict()


def gaussian_samples(n_images=60, sigma=4.0, claimed=None, seed=0, scale=1.0, per_image=3):
    """Ground truths are N(box, sigma^2) around the point box; the model says ``claimed``."""
    rng = np.random.default_rng(seed)
    claimed = sigma if claimed is None else claimed
    result = []
    for index in range(n_images):
        corner = rng.uniform(20, 150, (per_image, 2)) + np.arange(per_image)[:, None] * 100
        size = rng.uniform(60, 150, (per_image, 2)) * scale
        boxes = np.concatenate([corner, corner + size], axis=1)
        truths = boxes + sigma * rng.standard_normal(boxes.shape)
        labels = rng.integers(0, len(CLASSES), per_image)
        quantiles = boxes[:, None] + claimed * Z[None, :, None]
        result.append(
            data_sample(
                f"img{index:04d}",
                truths,
                labels,
                boxes,
                rng.uniform(0.2, 1, per_image),
                labels,
                quantiles,
                bbox_std=torch.full((per_image, 4), float(claimed)),
            )
        )
    return result


def evaluate(samples, **options):
    """Run the metric over data samples; returns its results."""
    metric = BoxUncertaintyMetric(**{"replicates": 200, **options})
    metric.dataset_meta = {"classes": CLASSES}
    for start in range(0, len(samples), 8):
        metric.process(None, samples[start : start + 8])
    return metric.evaluate(len(samples))


def pairs_of(samples, tmp_path, name="pairs.npz"):
    """The table of pairs the metric dumps."""
    from aqf_det.evaluation import BoxPairs

    evaluate(samples, dump_path=str(tmp_path / name), replicates=0)
    return BoxPairs.load(tmp_path / name)
