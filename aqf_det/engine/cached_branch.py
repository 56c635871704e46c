"""Stage 2 without the trunk: its features are collected once, then branches train on them.

In stage 2 the trunk is frozen, so where augmentation does not change from epoch to epoch its
features do not either. Several branches can then share one pass through the trunk, and each of them
trains in seconds. The loss is the head's own stage-2 loss.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from mmdet.structures import SampleList
from mmdet.structures.bbox import bbox_overlaps, get_box_tensor
from mmengine.runner.checkpoint import save_checkpoint
from torch import Tensor

from ..models.assigner import Assignment
from ..models.coder import Grid, make_grid
from ..models.detector import FlowDetection, FlowDetector
from ..models.prediction import boxes_and_scores

Report = Callable[[float], None]


@dataclass(frozen=True)
class CellCache:
    """The trunk's features at the cells of all training objects.

    Attributes:
        shapes: (height, width) of every level; the same for all images.
        features: Per level (P_l, c_l), the objects of that level in order.
        index: (P,) cell of each object in the grid.
        boxes: (P, 4) xyxy in network-input pixels.
        labels: (P,) classes.
        weights: (P,) mix-up weights.
        frame: (P, 4) the rectangle of each object's picture.
        image: (P,) the :func:`image_code` of each object's image; None in older files.
    """

    shapes: tuple[tuple[int, int], ...]
    features: tuple[Tensor, ...]
    index: Tensor
    boxes: Tensor
    labels: Tensor
    weights: Tensor
    frame: Tensor
    image: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, chosen: Tensor, grid: Grid) -> tuple[list[Tensor], Assignment]:
        """Features and objects of the chosen rows (B,)."""
        level = grid.level[self.index]
        features = []
        for i, values in enumerate(self.features):
            row = (level == i).cumsum(0) - 1
            features.append(values[row[chosen[level[chosen] == i]]])
        objects = Assignment(
            image=torch.zeros_like(chosen),
            index=self.index[chosen],
            boxes=self.boxes[chosen],
            labels=self.labels[chosen],
            weights=self.weights[chosen],
            frame=self.frame[chosen],
        )
        return features, objects

    def save(self, path: Path) -> None:
        """Write the cache; the file appears only once it is complete."""
        partial = path.with_suffix(".partial")
        torch.save(dict(self.__dict__), partial)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> CellCache:
        """Read what :meth:`save` wrote."""
        return cls(**torch.load(path, weights_only=True))


def image_code(meta: Mapping[str, Any]) -> int:
    """A number that tells images apart, the same in every run."""
    return zlib.crc32(str(meta.get("img_id", meta.get("img_path"))).encode())


Choice = Callable[[FlowDetector, Sequence[Tensor], Grid, SampleList], Assignment]


def assigned_cells(
    detector: FlowDetector, hidden: Sequence[Tensor], grid: Grid, samples: SampleList
) -> Assignment:
    """The cells that the assigner gives to the objects, as in stage 2 of a training run."""
    found: Assignment = detector.bbox_head.assign(grid, samples)
    return found


def detecting_cells(
    detector: FlowDetector,
    hidden: Sequence[Tensor],
    grid: Grid,
    samples: SampleList,
    score_threshold: float = 0.1,
    iou_threshold: float = 0.5,
) -> Assignment:
    """The cells whose boxes find an object, whichever those are.

    At test time distributions are asked for and judged at these cells. Each object has a total
    weight of 1, in proportion to the scores of the cells that find it.

    Args:
        detector: Trained in stage 1.
        hidden: Its head's feature maps.
        grid: The candidates.
        samples: With objects in network-input pixels.
        score_threshold: Least score of the right class.
        iou_threshold: Least overlap with the object.
    """
    head = detector.bbox_head
    raw = head.flatten(head.raw_maps(hidden))
    every = torch.arange(len(grid), device=raw.device)
    parts = []
    for number, (values, sample) in enumerate(zip(raw, samples, strict=True)):
        boxes, scores = boxes_and_scores(values, grid, every)
        best, labels = scores.max(-1)
        index = (best >= score_threshold).nonzero().flatten()
        truths = get_box_tensor(sample.gt_instances.bboxes).float().reshape(-1, 4)
        classes = sample.gt_instances.labels
        if len(index) == 0 or len(truths) == 0:
            continue
        overlap = bbox_overlaps(boxes[index], truths)
        overlap[labels[index][:, None] != classes[None]] = -1.0
        value, truth = overlap.max(1)
        hit = value >= iou_threshold
        index, truth = index[hit], truth[hit]
        total = best.new_zeros(len(truths)).index_add(0, truth, best[index])
        parts.append(
            Assignment(
                image=torch.full_like(index, number),
                index=index,
                boxes=truths[truth],
                labels=classes[truth],
                weights=best[index] / total[truth],
            )
        )
    names = [f.name for f in fields(Assignment) if f.name != "frame"]
    if not parts:
        empty = every[:0]
        none = Assignment(empty, empty, raw.new_zeros(0, 4), empty, raw.new_zeros(0))
        return none.framed(samples)
    joined = (torch.cat([getattr(part, name) for part in parts]) for name in names)
    return Assignment(*joined).framed(samples)


def collect_cells(
    detector: FlowDetector,
    loader: Iterable[Any],
    rounds: int = 1,
    report: Report | None = None,
    choose: Choice = assigned_cells,
) -> CellCache:
    """Pass the training images through the trunk, ``rounds`` times with their random augmentation.

    Args:
        detector: Trained in stage 1.
        loader: The training data loader; all its images must have the same size.
        rounds: Passes over the data.
        report: Called with the finished share.
        choose: Which cells learn which objects: :func:`assigned_cells`, :func:`detecting_cells`.
    """
    if not isinstance(detector, FlowDetector):
        raise TypeError(
            f"features of cells are those of a FlowDetector, got {type(detector).__name__}; train "
            "the flow beside a stock detector with tools/train.py."
        )
    head = detector.bbox_head
    was_training = detector.training
    detector.eval()
    features: list[list[Tensor]] = [[] for _ in head.strides]
    objects: list[Assignment] = []
    images: list[Tensor] = []
    grid: Grid | None = None
    total = rounds * len(loader)  # type: ignore[arg-type]
    for turn in range(rounds):
        for step, batch in enumerate(loader):
            ready = detector.data_preprocessor(batch, True)
            with torch.no_grad():
                hidden = head.hidden(detector.extract_feat(ready["inputs"]))
            here = head.grid(hidden)
            if grid is not None and here.shapes != grid.shapes:
                raise ValueError(
                    "the features of images of different sizes cannot be cached together; train "
                    "stage 2 with tools/train.py instead."
                )
            grid = here
            with torch.no_grad():
                found = choose(detector, hidden, grid, ready["data_samples"])
            objects.append(found)
            codes = [image_code(sample.metainfo) for sample in ready["data_samples"]]
            images.append(torch.tensor(codes)[found.image.cpu()])
            for store, values in zip(
                features, head.cell_features(hidden, grid, found.image, found.index), strict=True
            ):
                store.append(values.cpu())
            if report is not None:
                report((turn * total / rounds + step + 1) / total)
    detector.train(was_training)
    if grid is None:
        raise ValueError("the training data set is empty.")
    return CellCache(
        shapes=grid.shapes,
        features=tuple(torch.cat(values) for values in features),
        index=torch.cat([item.index for item in objects]).cpu(),
        boxes=torch.cat([item.boxes for item in objects]).cpu(),
        labels=torch.cat([item.labels for item in objects]).cpu(),
        weights=torch.cat([item.weights for item in objects]).cpu(),
        frame=torch.cat([item.frame for item in objects if item.frame is not None]).cpu(),
        image=torch.cat(images),
    )


def train_branch(
    detector: FlowDetector,
    cells: CellCache,
    steps: int,
    batch_size: int = 64,
    lr: float = 2e-3,
    seed: int = 0,
    weight_decay: float = 0.0,
    rows: Tensor | None = None,
    report: Report | None = None,
) -> None:
    """Train the flow branch of a detector on cached features: Adam, one rise and fall of the rate.

    Args:
        detector: Its trunk must be the one the features come from.
        cells: The features.
        steps: Optimisation steps.
        batch_size: Objects per step.
        lr: Highest learning rate.
        seed: Seed of batches and levels.
        weight_decay: Decoupled decay of matrices, relative to the learning rate. Offsets are free,
            so a branch that may use few features still learns the shape that all boxes share.
        rows: The objects to train on; all by default.
        report: Called with the finished share.
    """
    head = detector.bbox_head
    detector.set_stage(2)
    head.calibration.clear()
    detector.train()
    grid = make_grid(cells.shapes, head.strides, head.slots)
    parameters = list(head.branch.parameters())
    matrices, others = ([p for p in parameters if (p.dim() == 2) == flat] for flat in (True, False))
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others},
    ]
    optimizer = torch.optim.AdamW(groups, lr, betas=(0.9, 0.99), weight_decay=0.0)
    known = None if head.dropout.p else _raw_outputs(detector, cells, grid)
    torch.manual_seed(seed)
    rise = max(1, steps // 10)
    for step in range(steps):
        fall = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / rise) * fall
        chosen = torch.randint(len(cells) if rows is None else len(rows), (batch_size,))
        if rows is not None:
            chosen = rows[chosen]
        features, objects = cells.batch(chosen, grid)
        raw = None if known is None else known[None, chosen]
        loss = head.flow_loss_at(features, grid, objects, raw)["loss_flow"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        if report is not None:
            report((step + 1) / steps)
    detector.eval()


@torch.no_grad()
def _raw_outputs(detector: FlowDetector, cells: CellCache, grid: Grid) -> Tensor:
    """The frozen head's outputs (P, 9 + C) for all objects."""
    parts = []
    for chosen in torch.arange(len(cells)).split(4096):
        features, objects = cells.batch(chosen, grid)
        parts.append(detector.bbox_head.raw_at(features, grid, objects.index)[0])
    return torch.cat(parts)


def save_detector(detector: FlowDetection, path: Path, dataset_meta: dict[str, Any]) -> None:
    """Write a checkpoint as a training run does; it appears only once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    content = {"state_dict": detector.state_dict(), "meta": {"dataset_meta": dataset_meta}}
    save_checkpoint(content, str(partial))
    partial.replace(path)
