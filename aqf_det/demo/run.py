"""The demo: generate scenes, train a detector and branches on it, test them, draw and compare."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from ..datasets.demo_scenes import FORMAT_VERSION, generate_demo_dataset
from ..engine import running
from ..engine.cached_branch import CellCache, collect_cells, save_detector, train_branch
from ..study.progress import ShareHook, Step, output_to
from ..study.variants import Variant, build_detector, variant_config
from .plan import BRANCHES, DETECTOR, QFR, VARIANTS, DemoSize
from .report import write_report

Report = Callable[[float], None]
MARKER = "demo.json"


@dataclass(frozen=True)
class Demo:
    """A run of the demo in one folder.

    Attributes:
        out: The folder; holds ``data/``, a folder per variant, ``gallery/`` and the tables.
        configs: The folder of configs.
        size: How much of everything.
    """

    out: Path
    configs: Path
    size: DemoSize = DemoSize()

    def steps(self) -> list[Step]:
        """Everything to be done, in order. Seconds are those of two cores."""
        self._claim_folder()
        train = self.checkpoint(DETECTOR).is_file
        steps = [
            Step("generate the scenes", 20, self._has_data, self._generate),
            Step("train the detector", 200, train, self._train_detector),
            Step("collect its features", 20, self.features.is_file, self._collect_features),
        ]
        for variant in BRANCHES:
            done, run = self.checkpoint(variant).is_file, partial(self._train_branch, variant)
            steps.append(Step(f"train the branch: {variant.title}", 10, done, run))
        for variant in VARIANTS:
            tested, run = partial(self._is_tested, variant), partial(self._test, variant)
            steps.append(Step(f"test: {variant.title}", 10, tested, run))
        steps.append(Step("draw and compare", 15, self._is_reported, self._report))
        return steps

    def outputs(self) -> dict[str, Path]:
        """What the demo leaves behind, by name."""
        return {
            "results": self.out / "results.md",
            "numbers": self.out / "results.json",
            "gallery": self.out / "gallery",
            "Gaussian beside QFR": self.out / "gallery" / "gaussian_and_qfr.png",
            "predicted and true quantiles": self.out / "gallery" / "hidden_sides.png",
            "QFR checkpoint": self.checkpoint(QFR),
            "QFR config": self.config_file(QFR),
            "test pairs (for tools/analyze.py)": self.pairs_file(QFR),
            "generated data": self.data,
            "log": self.log,
        }

    # ------------------------------------------------------------------ files

    @property
    def data(self) -> Path:
        """The generated data set."""
        return self.out / "data"

    @property
    def log(self) -> Path:
        """Where mmengine's output goes."""
        return self.out / "log.txt"

    def folder(self, variant: Variant) -> Path:
        """Work dir of a variant."""
        return self.out / variant.name

    def checkpoint(self, variant: Variant) -> Path:
        """Its final weights."""
        name = f"epoch_{self.size.epochs}.pth" if variant is DETECTOR else "branch.pth"
        return self.folder(variant) / name

    @property
    def features(self) -> Path:
        """The frozen detector's features at the training objects."""
        return self.folder(DETECTOR) / "features.pth"

    def config_file(self, variant: Variant) -> Path:
        """Its complete config, for tools/test.py and tools/visualize.py."""
        return self.folder(variant) / "config.py"

    def pairs_file(self, variant: Variant) -> Path:
        """Matched test detections with their quantiles."""
        return self.folder(variant) / "test_pairs.npz"

    def metrics_file(self, variant: Variant) -> Path:
        """Test metrics."""
        return self.folder(variant) / "test_metrics.json"

    # ------------------------------------------------------------------ steps

    def config(self, variant: Variant) -> Config:
        """The variant's config for this run's data, folder and size."""
        cfg = running.load_config(
            str(self.configs / "demo_gaussian.py"), work_dir=str(self.folder(variant))
        )
        _set_data_root(cfg, str(self.data) + "/", self.size.image_size)
        if variant is DETECTOR:
            _set_epochs(cfg, self.size.epochs)
        return variant_config(cfg, variant)

    def _claim_folder(self) -> None:
        """Refuse a folder of something else; forget results that other settings produced."""
        marker = self.out / MARKER
        if self.out.exists() and any(self.out.iterdir()) and not marker.is_file():
            raise FileExistsError(
                f"{self.out} holds files that are no demo; choose another folder with --out."
            )
        self.out.mkdir(parents=True, exist_ok=True)
        known = json.loads(marker.read_text()) if marker.is_file() else {}
        now: dict[str, Any] = {"data": {"format": FORMAT_VERSION, **self._data_options()}}
        now.update({variant.name: self._fingerprint(variant) for variant in VARIANTS})
        for name, value in now.items():
            if known.get(name, value) != value:
                shutil.rmtree(self.out / name, ignore_errors=True)
        if known != now:
            (self.out / "results.json").unlink(missing_ok=True)
            marker.write_text(json.dumps(now, indent=2) + "\n")

    def _data_options(self) -> dict[str, int]:
        size = self.size
        return {
            "n_train": size.train,
            "n_val": size.val,
            "n_test": size.test,
            "image_size": size.image_size,
            "seed": size.seed,
        }

    def _fingerprint(self, variant: Variant) -> str:
        """Changes with anything the variant's result depends on, its detector included."""
        settings = [self.config(variant).to_dict(), self._data_options(), FORMAT_VERSION]
        text = json.dumps(settings, default=str)
        if variant is not DETECTOR:
            text += f"{self._fingerprint(DETECTOR)} {self.size.branch_steps}"
        else:
            text += f" {self.size.feature_rounds}"
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def _has_data(self) -> bool:
        return (self.data / "dataset.json").is_file()

    def _generate(self, report: Report) -> None:
        generate_demo_dataset(self.data, **self._data_options(), report=report)

    def _train_detector(self, report: Report) -> None:
        cfg = self.config(DETECTOR)
        if (self.folder(DETECTOR) / "last_checkpoint").is_file():
            running.set_resume(cfg, "auto")
        with output_to(self.log):
            running.train(cfg, hooks=[ShareHook(report)])
        self.config(DETECTOR).dump(self.config_file(DETECTOR))

    def _collect_features(self, report: Report) -> None:
        cfg = self.config(DETECTOR)
        with output_to(self.log):
            detector = build_detector(cfg, self.checkpoint(DETECTOR))
            unseen = cfg.val_dataloader.dataset.ann_file
            cfg.train_dataloader.dataset.ann_file = unseen
            loader = Runner.build_dataloader(cfg.train_dataloader, seed=self.size.seed)
            cells = collect_cells(detector, loader, self.size.feature_rounds, report)
        cells.save(self.features)

    def _train_branch(self, variant: Variant, report: Report) -> None:
        with output_to(self.log):
            cfg = self.config(variant)
            detector = build_detector(cfg, self.checkpoint(DETECTOR))
            cells = CellCache.load(self.features)
            train_branch(detector, cells, self.size.branch_steps, batch_size=128, report=report)
            self.folder(variant).mkdir(exist_ok=True)
            cfg.dump(self.config_file(variant))
            save_detector(detector, self.checkpoint(variant), dict(cfg.metainfo))

    def _is_tested(self, variant: Variant) -> bool:
        return self.metrics_file(variant).is_file() and self.pairs_file(variant).is_file()

    def _test(self, variant: Variant, report: Report) -> None:
        with output_to(self.log):
            metrics = running.test(
                self.config(variant),
                str(self.checkpoint(variant)),
                dump=str(self.pairs_file(variant)),
                hooks=[ShareHook(report)],
            )
        plain = {name: float(value) for name, value in metrics.items()}
        self.metrics_file(variant).write_text(json.dumps(plain, indent=2) + "\n")

    def _is_reported(self) -> bool:
        return (self.out / "results.json").is_file()

    def _report(self, report: Report) -> None:
        with output_to(self.log):
            write_report(self, report)


def _set_data_root(cfg: Config, root: str, image_size: int) -> None:
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = root
        for step in loader.dataset.pipeline:
            if step.type == "Letterbox":
                step.size = image_size


def _set_epochs(cfg: Config, epochs: int) -> None:
    """Change the length of stage 1; the learning rate keeps its shape."""
    cfg.train_cfg.max_epochs = epochs
    cfg.train_cfg.val_interval = epochs + 1  # the test follows anyway
    cfg.param_scheduler[0].update(starts=[0], total=epochs)
    cfg.default_hooks.checkpoint.interval = 1
    cfg.custom_hooks = []
