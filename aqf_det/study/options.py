"""Options of prediction that change boxes or scores, measured on one branch with its trunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from mmdet.structures import SampleList
from mmengine.evaluator import Evaluator
from torch import Tensor

from ..calibration import BoxCalibration
from ..calibration.held_out import HeldOutBoxes, compare_with_truth
from ..calibration.run import usable_edges
from ..engine.cached_branch import image_code
from ..models.detector import FlowDetector, detect_in_views
from ..models.ensemble import Member
from ..models.prediction import Detections, finish
from ..models.prediction_options import PredictionOptions
from ..models.views import View


@dataclass(frozen=True)
class Option:
    """A way to predict with trained branches.

    Attributes:
        name: For files.
        title: For tables.
        test_cfg: What it changes in the head's ``test_cfg``.
        dropout: Whether it needs a branch trained with dropout.
        all_seeds: Whether the branches of all seeds take part, or only the first.
        all_detectors: Whether the branches of all detectors take part, or only of the first.
    """

    name: str
    title: str
    test_cfg: Mapping[str, Any] = field(default_factory=dict)
    dropout: bool = False
    all_seeds: bool = False
    all_detectors: bool = False


OPTIONS = (
    Option("plain", "QFR"),
    Option("flip", "mirror image (`flip=True`)", {"flip": True}),
    Option("variance", 'variance voting (`voting="variance"`)', {"voting": "variance"}),
    Option("quantile", 'quantile voting (`voting="quantile"`)', {"voting": "quantile"}),
    Option("rescore", "score x (1 - uncertainty) (`rescore=True`)", {"rescore": True}),
    Option("ensemble", "ensemble of the branch's seeds (`ensemble=[...]`)", all_seeds=True),
    Option(
        "detectors",
        "ensemble of separately trained detectors (`ensemble=[...]`)",
        all_detectors=True,
    ),
    Option(
        "dropout",
        "MC dropout, boxes averaged over the passes",
        {"mc_moves_boxes": True},
        dropout=True,
    ),
)


@dataclass(frozen=True)
class Predictor:
    """An option with the detectors it needs.

    Attributes:
        option: Which.
        wholes: The trained detectors that take part.
        folds: For every fold the detectors that did not learn from it.
    """

    option: Option
    wholes: Sequence[FlowDetector]
    folds: Sequence[Sequence[FlowDetector]]

    @property
    def options(self) -> PredictionOptions:
        """How it predicts."""
        test_cfg = {**self.wholes[0].bbox_head.test_cfg, **self.option.test_cfg}
        return PredictionOptions.parse(test_cfg)

    @property
    def settings(self) -> PredictionOptions:
        """The same for the calibration: members count as those of an ensemble."""
        others = tuple("" for _ in self.wholes[1:])
        return replace(self.options, ensemble=others)

    def detect(
        self, views: Sequence[View], samples: SampleList, fold: int | None = None
    ) -> list[Detections]:
        """What is found in the images of a batch; ``fold`` names that of held-out images."""
        detectors = self.wholes if fold is None else self.folds[fold]
        own = self.option.all_detectors
        members = [Member(found, number == 0 or not own) for number, found in enumerate(detectors)]
        seen = [view for view in views if self.options.flip or not view.flipped]
        return detect_in_views(seen, samples, members, self.options)


def hold_out(
    predictors: Sequence[Predictor],
    loader: Any,
    judge: Mapping[str, Any],
    report: Callable[[float], None],
) -> list[HeldOutBoxes]:
    """Held-out boxes of every option, each seen by branches that did not learn from its image.

    Args:
        predictors: The options; their first detectors share one trunk.
        loader: Held-out images.
        judge: Config of the `BoxUncertaintyMetric` whose pairs are taken.
        report: Called with the finished share.
    """
    score, overlap = judge["score_threshold"], judge["iou_threshold"]
    parts: list[list[HeldOutBoxes]] = [[] for _ in predictors]
    number = 0
    trunk = predictors[0].wholes[0]
    for step, batch in enumerate(loader):
        ready = trunk.data_preprocessor(batch, False)
        samples = ready["data_samples"]
        with torch.no_grad():
            views = trunk.views(ready["inputs"], [s.metainfo for s in samples], flip=True)
            for i, sample in enumerate(samples):
                mine = [_image(view, i) for view in views]
                for store, predictor in zip(parts, predictors, strict=True):
                    fold = image_code(sample.metainfo) % len(predictor.folds)
                    found = predictor.detect(mine, [sample], fold)[0]
                    z, sizes = compare_with_truth(found, sample, score, overlap)
                    store.append(HeldOutBoxes(z, sizes, torch.full((len(sizes),), number)))
                number += 1
        report((step + 1) / len(loader))
    return [HeldOutBoxes.join(store) for store in parts]


def calibrations(
    predictors: Sequence[Predictor], boxes: Sequence[HeldOutBoxes], sizes: Sequence[float]
) -> list[BoxCalibration]:
    """A calibration for each option."""
    result = []
    for predictor, held in zip(predictors, boxes, strict=True):
        calibration = BoxCalibration()
        edges = usable_edges(held.sizes, sizes)
        settings = predictor.settings.settings
        calibration.store(held.base_values, held.sizes, edges, settings=settings)
        result.append(calibration)
    return result


def measure(
    predictors: Sequence[Predictor],
    calibrated: Sequence[BoxCalibration],
    loader: Any,
    judge: Mapping[str, Any],
    report: Callable[[float], None],
) -> list[dict[str, dict[str, float]]]:
    """Test every option; returns mAP (``points``) and scores ``before`` and ``after`` calibration.

    Args:
        predictors: The options; their first detectors share one trunk.
        calibrated: Their calibrations.
        loader: Test images.
        judge: Config of the `BoxUncertaintyMetric`.
        report: Called with the finished share.
    """
    points = {"type": "VOCMetric", "metric": "mAP", "eval_mode": "area", "prefix": "area"}
    kinds = ("points", "before", "after")
    evaluators = [
        {kind: Evaluator([points if kind == "points" else dict(judge)]) for kind in kinds}
        for _ in predictors
    ]
    for table in evaluators:
        for evaluator in table.values():
            evaluator.dataset_meta = loader.dataset.metainfo
    empty = BoxCalibration()
    trunk = predictors[0].wholes[0]
    images = 0
    for step, batch in enumerate(loader):
        ready = trunk.data_preprocessor(batch, False)
        samples = ready["data_samples"]
        metas = [sample.metainfo for sample in samples]
        with torch.no_grad():
            views = trunk.views(ready["inputs"], metas, flip=True)
            for predictor, repair, table in zip(predictors, calibrated, evaluators, strict=True):
                found = predictor.detect(views, samples)
                sure = [_judged(item, judge["score_threshold"]) for item in found]
                laws = {"points": (found, empty), "before": (sure, empty), "after": (sure, repair)}
                for kind, (items, calibration) in laws.items():
                    results = _finished(predictor, items, samples, calibration, kind == "points")
                    said = [sample.new() for sample in samples]
                    said = trunk.add_pred_to_datasample(said, results)
                    table[kind].process(said, batch)
        images += len(samples)
        report((step + 1) / len(loader))
    return [
        {kind: _floats(evaluator.evaluate(images)) for kind, evaluator in table.items()}
        for table in evaluators
    ]


def _finished(
    predictor: Predictor,
    found: Sequence[Detections],
    samples: Any,
    calibration: BoxCalibration,
    only_points: bool,
) -> Any:
    """Results in original pixels; only boxes and scores where nothing else is judged."""
    options = predictor.settings
    if only_points:
        options = replace(options, levels=(0.5,), n_samples=0)
    for sample in samples:
        sample.set_metainfo({"quantile_levels": options.levels})
    return [
        finish(item, sample.metainfo, options, calibration, rescale=True)
        for item, sample in zip(found, samples, strict=True)
    ]


def _image(view: View, number: int) -> View:
    """One image of a view."""
    one: Callable[[Tensor], Tensor] = lambda x: x[number : number + 1]  # noqa: E731
    return View(one(view.images), [one(m) for m in view.maps], view.flipped)


def _judged(found: Detections, score: float) -> Detections:
    """The detections that uncertainty metrics look at."""
    return found.select((found.scores >= score).nonzero().flatten())


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}
