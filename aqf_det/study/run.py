"""A study: features once, then every branch trained, calibrated and tested on the same boxes."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.runner import Runner, set_random_seed

from ..calibration.held_out import HeldOutBoxes
from ..calibration.out_of_fold import train_folds
from ..calibration.run import held_out_config, pair_thresholds, usable_edges
from ..engine.cached_branch import (
    CellCache,
    collect_cells,
    detecting_cells,
    save_detector,
    train_branch,
)
from ..engine.cached_detections import (
    DetectionCache,
    collect_detections,
    held_out_boxes,
    predicted_pairs,
)
from ..engine.flow_split import other_split
from ..engine.running import check_checkpoint_path
from ..evaluation import BoxPairs, summarise
from ..models.detector import FlowDetector
from ..models.prediction_options import PredictionOptions
from .ledger import Ledger
from .plan import DROPOUT, SETTINGS, Run, StudySize, planned_runs
from .progress import Step, output_to
from .variants import DETECTOR, QFR, Variant, build_detector, variant_config

Report = Callable[[float], None]
#: Names of the detector's own results among the finished work.
TESTED, HELD_OUT = "detector_test", "detector_held_out"
#: The run that options of prediction, pictures and ensembles start from.
FIRST = Run(QFR, False, "unseen", 0)


@dataclass(frozen=True)
class Study:
    """A study of one frozen detector in one folder.

    Attributes:
        cfg: The detector's config: its training images, held-out images (``val_dataloader``) and
            test images.
        checkpoint: The detector's weights.
        out: The folder.
        size: How much of everything.
        held_out: Split of the held-out images, where it is not that of ``val_dataloader``.
        more: Weights of the same detector trained again, for an ensemble.
    """

    cfg: Config
    checkpoint: str
    out: Path
    size: StudySize = StudySize()
    held_out: str | None = None
    more: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for checkpoint in (self.checkpoint, *self.more):
            check_checkpoint_path(checkpoint)
        self.check_data()

    def check_data(self) -> None:
        """Refuse missing data before anything is built."""
        for name in ("held_out", "test"):
            dataset = self.loader_config(name).dataset
            file = Path(dataset.data_root) / dataset.ann_file
            if not file.is_file():
                raise FileNotFoundError(
                    f"{file} does not exist; name the folder that holds the data with --data-root."
                )

    # ------------------------------------------------------------------ steps

    def steps(self) -> list[Step]:
        """Everything to be done before the report, in order. Seconds are those of one core."""
        steps = self._preparation() + [self._step(run) for run in planned_runs(self.size)]
        for number, other in enumerate(self.others, 2):
            for step in (*other._preparation(), other._step(FIRST)):
                steps.append(replace(step, title=f"detector {number}: {step.title}"))
        return steps

    @cached_property
    def others(self) -> list[Study]:
        """A study of each further detector; only the first branch of QFR is made there."""
        folders = (self.out / f"detector_{number}" for number in range(2, 2 + len(self.more)))
        return [
            replace(self, checkpoint=checkpoint, out=folder, more=())
            for checkpoint, folder in zip(self.more, folders, strict=True)
        ]

    def _preparation(self) -> list[Step]:
        """Detections and features that the runs need."""
        steps = []
        for name, seconds in ((TESTED, 80), (HELD_OUT, 50)):
            title = {TESTED: "test the detector", HELD_OUT: "look at the held-out images"}[name]
            steps.append(
                Step(title, seconds, partial(self.has, name), partial(self._detections, name))
            )
        for setting in SETTINGS:
            steps.append(
                Step(
                    f"collect features for training, {setting} images",
                    200,
                    self.cells_file(setting).is_file,
                    partial(self._cells, setting),
                )
            )
        return steps

    def _step(self, run: Run) -> Step:
        return Step(
            f"{run.title}, {run.setting} images, seed {run.seed}",
            40 if run.setting == "unseen" else 12,
            partial(self.has, run.name),
            partial(self._run, run),
        )

    def has(self, name: str) -> bool:
        """Whether some work is finished."""
        return name in self.ledger.entries()

    # ------------------------------------------------------------------ files

    @cached_property
    def digest(self) -> str:
        """Changes with the detector and its data; what features depend on."""
        settings = self.cfg.to_dict()
        relevant = {k: v for k, v in settings.items() if k.endswith("_dataloader") or k == "model"}
        text = json.dumps([relevant, self.held_out, dict(self.size.rounds)], default=str)
        content = Path(self.checkpoint).read_bytes()
        return hashlib.sha1(content + text.encode(), usedforsecurity=False).hexdigest()[:12]

    @cached_property
    def ledger(self) -> Ledger:
        """The finished work."""
        size = {k: v for k, v in asdict(self.size).items() if k not in _ONLY_REPORTED}
        text = json.dumps([self.digest, size], default=str)
        mark = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]
        return Ledger(self.out / "results.jsonl", mark)

    @property
    def log(self) -> Path:
        """Where mmengine's output goes."""
        return self.out / "log.txt"

    @property
    def cache(self) -> Path:
        """Features of this detector."""
        return self.out / f"features_{self.digest}"

    def cells_file(self, setting: str) -> Path:
        """Features of a setting's training objects."""
        return self.cache / f"{setting}.pth"

    def run_file(self, run: Run, kind: str) -> Path:
        """Matched pairs (``before.npz``, ``after.npz``) or weights (``branch.pth``) of a run."""
        return self.out / f"runs_{self.ledger.fingerprint}" / f"{run.name}_{kind}"

    def pairs(self, run: Run, calibrated: bool) -> BoxPairs:
        """Test detections with the distributions of a finished run."""
        return BoxPairs.load(self.run_file(run, "after.npz" if calibrated else "before.npz"))

    # ------------------------------------------------------------------ data

    def loader_config(self, name: str) -> Any:
        """The config of ``"test"`` or ``"held_out"`` images as a detector is tested on them."""
        if name == "test":
            loader = copy.deepcopy(self.cfg.test_dataloader)
        else:
            loader = held_out_config(self.cfg, self.held_out)
        loader.update(num_workers=0, persistent_workers=False)
        return loader

    def loader(self, name: str) -> Any:
        """Their data loader."""
        return Runner.build_dataloader(self.loader_config(name), seed=0)

    def training_loader(self, setting: str) -> Any:
        """Images of a setting with the training pipeline."""
        loader = copy.deepcopy(self.cfg.train_dataloader)
        if setting == "unseen":
            loader = other_split(loader, self.loader_config("held_out").dataset.ann_file)
        loader.update(num_workers=0, persistent_workers=False)
        return Runner.build_dataloader(loader, seed=0)

    @cached_property
    def test(self) -> DetectionCache:
        """The detector's detections in test images."""
        return DetectionCache.load(self.cache / f"{TESTED}.pth")

    @cached_property
    def held(self) -> DetectionCache:
        """The detector's detections in held-out images."""
        return DetectionCache.load(self.cache / f"{HELD_OUT}.pth")

    @cached_property
    def cells(self) -> dict[str, CellCache]:
        """Features of both settings' training objects."""
        return {setting: CellCache.load(self.cells_file(setting)) for setting in SETTINGS}

    def judge(self, replicates: int) -> dict[str, Any]:
        """Config of the metric, with the thresholds of the detector's config."""
        score, overlap = pair_thresholds(self.cfg)
        return {
            "type": "BoxUncertaintyMetric",
            "protocols": ["strict"],
            "score_threshold": score,
            "iou_threshold": overlap,
            "replicates": replicates,
        }

    # ------------------------------------------------------------------ detectors

    def config(self, variant: Variant, dropout: bool = False) -> Config:
        """A variant's config."""
        cfg = variant_config(self.cfg, variant)
        if variant.has_branch:
            cfg.model.bbox_head.flow.update({**self.size.branch, **variant.flow})
        cfg.model.test_cfg.n_samples = self.size.samples
        if dropout:
            cfg.model.bbox_head.dropout = DROPOUT
            cfg.model.test_cfg.update(mc_passes=self.size.passes, mc_moves_boxes=False)
        return cfg

    def detector(self, run: Run) -> FlowDetector:
        """The frozen detector with a new branch."""
        torch.manual_seed(run.seed)
        detector: FlowDetector = build_detector(
            self.config(run.variant, run.dropout), self.checkpoint
        )
        return detector

    def trained(self, run: Run) -> tuple[FlowDetector, list[FlowDetector]]:
        """A finished run's calibrated detector and the members of its folds; see `_keeps`."""
        content = torch.load(self.run_file(run, "branch.pth"), weights_only=True)
        whole = self.detector(run)
        members = [copy.deepcopy(whole) for _ in content["branches"][1:]]
        for detector, state in zip([whole, *members], content["branches"], strict=True):
            detector.set_stage(2)
            detector.bbox_head.branch.load_state_dict(state)
            detector.eval()
        whole.bbox_head.calibration.load_state_dict(content["calibration"])
        return whole, members

    def held_out_boxes(self, run: Run) -> HeldOutBoxes:
        """Held-out boxes as a finished run saw them; see `_keeps`."""
        with output_to(self.log):
            return self._held_out(*self.trained(run))

    # ------------------------------------------------------------------ work

    def _detections(self, name: str, report: Report) -> None:
        with output_to(self.log):
            detector = build_detector(self.config(DETECTOR), self.checkpoint)
            loader = self.loader("test" if name == TESTED else "held_out")
            evaluator = Evaluator(
                [
                    {"type": "VOCMetric", "metric": "mAP", "eval_mode": "11points"},
                    {"type": "VOCMetric", "metric": "mAP", "eval_mode": "area", "prefix": "area"},
                    self.judge(0),
                ]
            )
            evaluator.dataset_meta = loader.dataset.metainfo
            cache, metrics = collect_detections(detector, loader, evaluator, report)
        cache.save(self.cache / f"{name}.pth")
        counts = {
            "images": len(cache.pairs.image_ids),
            "truths": int(cache.pairs.truth_counts.sum()),
            "pairs": int(cache.pairs.strict.sum()),
        }
        self.ledger.append(name, {**counts, "metrics": metrics})

    def _cells(self, setting: str, report: Report) -> None:
        with output_to(self.log):
            set_random_seed(0)  # of Python and numpy as well, which augment the images
            detector = build_detector(self.config(DETECTOR), self.checkpoint)
            loader = self.training_loader(setting)
            rounds = self.size.rounds[setting]
            score, overlap = pair_thresholds(self.cfg)
            choose = partial(detecting_cells, score_threshold=score, iou_threshold=overlap)
            cells = collect_cells(detector, loader, rounds, report, choose)
        cells.save(self.cells_file(setting))

    def _run(self, run: Run, report: Report) -> None:
        begun = time.process_time()
        with output_to(self.log):
            detector = self.detector(run)
            members = self._train(run, detector, report)
            boxes = self._held_out(detector, members)
            trained = time.process_time()
            edges = usable_edges(boxes.sizes, self.size.sizes)
            settings = PredictionOptions.parse(detector.bbox_head.test_cfg).settings
            calibration = detector.bbox_head.calibration
            calibration.store(boxes.base_values, boxes.sizes, edges, settings=settings)
            pairs = predicted_pairs(detector, self.test, calibration)
        kinds = ("before", "after")
        for kind, table in zip(kinds, pairs, strict=True):
            table.save(self.run_file(run, f"{kind}.npz"))
        if _keeps(run):
            path = self.run_file(run, "branch.pth")
            branches = [d.bbox_head.branch.state_dict() for d in (detector, *members)]
            torch.save({"branches": branches, "calibration": calibration.state_dict()}, path)
            save_detector(detector, path.with_name(f"{run.name}.pth"), self._classes())
            self.config(run.variant, run.dropout).dump(path.with_name(f"{run.name}.py"))
        summaries = {
            kind: summarise(table, replicates=0).to_dict()
            for kind, table in zip(kinds, pairs, strict=True)
        }
        done = time.process_time()
        content = {
            "variant": run.variant.name,
            "dropout": run.dropout,
            "setting": run.setting,
            "seed": run.seed,
            "held_out_boxes": len(boxes),
            "edges": list(edges),
            "seconds": {"train": trained - begun, "calibrate and test": done - trained},
        }
        scores = {kind: {k: s[k] for k in ("all", "size")} for kind, s in summaries.items()}
        self.ledger.append(run.name, {**content, **scores})

    def _train(self, run: Run, detector: FlowDetector, report: Report) -> list[FlowDetector]:
        """Train a run's branch; returns the members of the folds, if there are any."""
        if not run.variant.has_branch:
            return []
        options = {**self.size.training, "seed": run.seed}
        self._pretrain(run, detector, options)
        report(0.4)
        if run.setting == "seen":
            return []
        cells, steps = self.cells[run.setting], self.size.steps
        members = train_folds(detector, cells, steps, self.size.folds, **options)
        train_branch(detector, cells, steps, **options)
        report(0.8)
        return members

    def _pretrain(self, run: Run, detector: FlowDetector, options: Mapping[str, Any]) -> None:
        """Train a branch on the detector's own images, once for both settings."""
        path = self.run_file(replace(run, setting="seen"), "start.pth")
        if path.is_file():
            detector.set_stage(2)
            detector.bbox_head.branch.load_state_dict(torch.load(path, weights_only=True))
            return
        train_branch(detector, self.cells["seen"], self.size.pretraining, **options)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(detector.bbox_head.branch.state_dict(), path)

    def _held_out(self, detector: FlowDetector, members: list[FlowDetector]) -> HeldOutBoxes:
        """Held-out boxes, each seen by a branch that did not learn from its image."""
        if not members:
            return held_out_boxes(detector, self.held)
        image = self.held.cells.image
        assert image is not None
        fold = image % len(members)
        return HeldOutBoxes.join(
            held_out_boxes(member, self.held, (fold == number).nonzero().flatten())
            for number, member in enumerate(members)
        )

    def _classes(self) -> dict[str, Any]:
        return {"classes": self.test.pairs.classes}


#: Settings of a study that change its report but no run.
_ONLY_REPORTED = ("seeds", "replicates", "gallery", "shown_score", "variants")


def _keeps(run: Run) -> bool:
    """Whether a run's weights are needed again: for the options of prediction and pictures."""
    return run.variant is QFR and run.setting == "unseen"
