"""Predictions of many branches for the boxes of one frozen detector, without the trunk.

Branches never move a box, so which detection is judged by which ground truth is known before any of
them is trained. The features of exactly these detections are kept; a branch then predicts a whole
test set in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import Evaluator
from torch import Tensor

from ..calibration import BoxCalibration
from ..calibration.held_out import FARTHEST, HeldOutBoxes
from ..datasets.transforms import letterbox_map
from ..evaluation import BoxPairs, BoxUncertaintyMetric
from ..evaluation.box_uncertainty_metric import collect_pairs
from ..evaluation.scores import pair_energy
from ..models.assigner import picture_frames
from ..models.box_distribution import BoxDistribution
from ..models.coder import make_grid
from ..models.detector import FlowDetector
from ..models.prediction import (
    Detections,
    box_sizes,
    cell_distribution,
    dropout_masks,
    find_candidates,
)
from ..models.prediction_options import PredictionOptions
from .cached_branch import CellCache, image_code

#: Boxes predicted at a time; bounds the memory of mixtures and samples.
CHUNK = 256


@dataclass(frozen=True)
class DetectionCache:
    """The matched detections of a frozen detector, with the features of their cells.

    Attributes:
        cells: Features; its boxes are the ground truths in network-input pixels.
        raw: (P, 9 + C) the detector's outputs.
        scale: (P, 4), and offset (P, 4): network-input pixels = original pixels * scale + offset.
        offset: See scale.
        pairs: The same P detections with the detector's own distributions, in original pixels.
    """

    cells: CellCache
    raw: Tensor
    scale: Tensor
    offset: Tensor
    pairs: BoxPairs

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def sizes(self) -> Tensor:
        """(P,) sqrt(area) of the predicted boxes in pixels of the original image."""
        return box_sizes(torch.from_numpy(self.pairs.box).float())

    def save(self, path: Path) -> None:
        """Write two files, ``path`` and the pairs beside it; ``path`` appears last."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.pairs.save(path.with_suffix(".npz"))
        partial = path.with_suffix(".partial")
        tensors = {name: getattr(self, name) for name in ("raw", "scale", "offset")}
        torch.save({"cells": dict(self.cells.__dict__), **tensors}, partial)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> DetectionCache:
        """Read what :meth:`save` wrote."""
        content = torch.load(path, weights_only=True)
        cells = CellCache(**content.pop("cells"))
        return cls(cells=cells, pairs=BoxPairs.load(path.with_suffix(".npz")), **content)


def collect_detections(
    detector: FlowDetector,
    loader: Iterable[Any],
    evaluator: Evaluator,
    report: Callable[[float], None] | None = None,
) -> tuple[DetectionCache, dict[str, float]]:
    """Test the frozen detector once and keep what branches need.

    Args:
        detector: Without a branch.
        loader: Data loader with a test pipeline.
        evaluator: Metrics, among them one `BoxUncertaintyMetric`.
        report: Called with the finished share.

    Returns:
        The cache and the metrics of the detector itself.
    """
    head = detector.bbox_head
    options = PredictionOptions.parse(head.test_cfg)
    tables = [m for m in evaluator.metrics if isinstance(m, BoxUncertaintyMetric)]
    if len(tables) != 1:
        raise ValueError("the evaluator must list one BoxUncertaintyMetric.")
    detector.eval()
    features: list[list[Tensor]] = [[] for _ in head.strides]
    columns: dict[str, list[Tensor]] = {
        name: []
        for name in ("index", "boxes", "labels", "frame", "image", "raw", "scale", "offset")
    }
    shapes: tuple[tuple[int, int], ...] = ()
    total = 0
    for step, batch in enumerate(loader):
        ready = detector.data_preprocessor(batch, False)
        with torch.no_grad():
            hidden = head.hidden(detector.extract_feat(ready["inputs"]))
            grid = head.grid(hidden)
            if shapes and grid.shapes != shapes:
                raise ValueError("the detections of images of different sizes cannot be cached.")
            shapes = grid.shapes
            seen = [[h[i : i + 1] for h in hidden] for i in range(len(hidden[0]))]
            found = [find_candidates(head, maps, grid, options) for maps in seen]
            detections = []
            frames = picture_frames(ready["data_samples"], found[0].boxes)
            for item, frame in zip(found, frames, strict=True):
                chosen = item.index[item.kept]
                law = cell_distribution(head, (), grid, chosen, item.raw[chosen], frame, None)
                kept = item.kept
                detections.append(
                    Detections(item.boxes[kept], item.scores[kept], item.labels[kept], law)
                )
            results = head.finish(detections, ready["data_samples"], options, rescale=True)
        samples = detector.add_pred_to_datasample(ready["data_samples"], results)
        evaluator.process(samples, batch)
        records = tables[0].results[-len(samples) :]
        for item, sample, record, maps, frame in zip(
            found, samples, records, seen, frames, strict=True
        ):
            index = item.index[item.kept][torch.from_numpy(record["detection"])]
            scale, offset = letterbox_map(item.boxes, sample.metainfo)
            truth = torch.from_numpy(np.asarray(record["truth"], np.float32)).reshape(-1, 4)
            rows = {
                "index": index,
                "boxes": truth * scale + offset,
                "labels": torch.from_numpy(record["label"]),
                "frame": frame.expand(len(index), 4),
                "image": torch.full_like(index, image_code(sample.metainfo)),
                "raw": item.raw[index],
                "scale": scale.expand(len(index), 4),
                "offset": offset.expand(len(index), 4),
            }
            for name, values in rows.items():
                columns[name].append(values.cpu())
            for store, values in zip(
                features,
                head.cell_features(maps, grid, torch.zeros_like(index), index),
                strict=True,
            ):
                store.append(values.cpu())
        total += len(samples)
        if report is not None:
            report((step + 1) / len(loader))  # type: ignore[arg-type]
    pairs = collect_pairs(tables[0].results, evaluator.dataset_meta["classes"])
    metrics = {name: float(value) for name, value in evaluator.evaluate(total).items()}
    joined = {name: torch.cat(values) for name, values in columns.items()}
    cells = CellCache(
        shapes=shapes,
        features=tuple(torch.cat(values) for values in features),
        weights=torch.ones(len(joined["index"])),
        **{name: joined.pop(name) for name in ("index", "boxes", "labels", "frame", "image")},
    )
    return DetectionCache(cells=cells, pairs=pairs, **joined), metrics


def predict_rows(
    detector: FlowDetector, cache: DetectionCache, rows: Tensor | None = None
) -> Iterator[tuple[Tensor, BoxDistribution]]:
    """Chunks of rows with their distributions in network-input pixels, uncalibrated."""
    head = detector.bbox_head
    detector.eval()
    grid = make_grid(cache.cells.shapes, head.strides, head.slots)
    masks = dropout_masks(head, PredictionOptions.parse(head.test_cfg))
    every = torch.arange(len(cache)) if rows is None else rows
    for chosen in every.split(CHUNK):
        features, objects = cache.cells.batch(chosen, grid)
        with torch.no_grad():
            yield (
                chosen,
                cell_distribution(
                    head,
                    features,
                    grid,
                    objects.index,
                    cache.raw[chosen],
                    cache.cells.frame[chosen],
                    masks,
                ),
            )


def held_out_boxes(
    detector: FlowDetector, cache: DetectionCache, rows: Tensor | None = None
) -> HeldOutBoxes:
    """Base values of the ground truths under a branch, for calibration.

    Args:
        detector: With the branch.
        cache: Detections of held-out images.
        rows: Which of them; all by default. Only pairs of the strict protocol are taken.
    """
    strict = torch.from_numpy(cache.pairs.strict)
    rows = torch.arange(len(cache)) if rows is None else rows
    rows = rows[strict[rows]]
    values = [torch.zeros(0, 4)]
    for chosen, law in predict_rows(detector, cache, rows):
        with torch.no_grad():
            z = law.marginal().to_base(cache.cells.boxes[chosen])
        values.append(z.clamp(-FARTHEST, FARTHEST).float())
    image = torch.from_numpy(cache.pairs.image)[rows]
    return HeldOutBoxes(torch.cat(values), cache.sizes[rows], image)


def predicted_pairs(
    detector: FlowDetector, cache: DetectionCache, calibration: BoxCalibration | None = None
) -> list[BoxPairs]:
    """The pairs with the distributions of a branch: as predicted and, where given, calibrated."""
    options = PredictionOptions.parse(detector.bbox_head.test_cfg)
    levels = torch.tensor(options.levels)
    parts: list[list[dict[str, np.ndarray]]] = [[], []]
    source = cache.pairs.energy_source
    sizes = cache.sizes
    rng = np.random.default_rng(0)
    for chosen, law in predict_rows(detector, cache):
        laws = [law]
        if calibration is not None:
            laws.append(calibration.recalibrate(law, sizes[chosen], options.settings))
        scale, offset = cache.scale[chosen], cache.offset[chosen]
        for part, item in zip(parts, laws, strict=False):
            with torch.no_grad():
                aleatoric, epistemic = item.variance_parts()
                quantiles = (item.quantiles(levels) - offset[:, None]) / scale[:, None]
                samples = None
                if options.n_samples:
                    drawn = item.samples(options.n_samples)
                    samples = ((drawn - offset[:, None]) / scale[:, None]).numpy()
            truth = cache.pairs.truth[chosen.numpy()]
            energy, source = pair_energy(
                truth, np.array(options.levels), quantiles.numpy(), samples, rng
            )
            std = ((aleatoric + epistemic).sqrt() / scale).double().numpy()
            part.append({"quantiles": quantiles.numpy(), "std": std, "energy": energy})
    names = ("quantiles", "std", "energy")
    columns = [
        {n: np.concatenate([chunk[n] for chunk in part]) for n in names} for part in parts if part
    ]
    return [
        BoxPairs(
            **{
                **cache.pairs.__dict__,
                "levels": np.array(options.levels),
                "energy_source": source,
                **new,
            }
        )
        for new in columns
    ]
