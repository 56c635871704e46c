"""Test one checkpoint on clean and on corrupted images, a resumable step each."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mmengine.config import Config

from aqf_core.errors import DomainError

from ..datasets.corruptions import check_corruption, insert_corruption
from ..engine import running
from ..evaluation import BoxPairs
from ..study.progress import ShareHook, Step, output_to

METRICS = ("BoxUncertaintyMetric", "PDQMetric", "DetectionECEMetric")


@dataclass(frozen=True)
class Condition:
    """What was done to the images.

    Example:
        >>> Condition("fog", 3).name, CLEAN.name
        ('fog_3', 'clean')
    """

    kind: str
    severity: int

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.kind}_{self.severity}" if self.severity else self.kind

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.kind}, severity {self.severity}" if self.severity else "clean images"


CLEAN = Condition("clean", 0)


@dataclass(frozen=True)
class Measurement:
    """Test metrics by name, and the matched pairs they were computed from."""

    condition: Condition
    metrics: dict[str, float]
    pairs: BoxPairs


@dataclass(frozen=True)
class Sweep:
    """Tests of a checkpoint under several corruptions.

    Attributes:
        cfg: The config; its test set is used.
        checkpoint: Weights written by training.
        out: Folder of the results.
        kinds: Corruptions, as in :mod:`aqf_det.datasets.corruptions`.
        severities: 1 ... 5; clean images are tested anyway.
    """

    cfg: Config
    checkpoint: str
    out: Path
    kinds: Sequence[str]
    severities: Sequence[int]

    def __post_init__(self) -> None:
        running.check_checkpoint_path(self.checkpoint)
        for kind in self.kinds:
            for severity in self.severities:
                check_corruption(kind, severity)
        if not self.kinds or not self.severities or min(self.severities) < 1:
            raise DomainError("a sweep needs a corruption and a severity from 1 on.")
        # Whatever is wrong with the pipeline is said before the first test.
        self.config(Condition(self.kinds[0], self.severities[0]))

    def conditions(self) -> list[Condition]:
        """Clean images first, then every kind with rising severity."""
        rising = sorted(set(self.severities))
        return [CLEAN, *(Condition(k, s) for k in dict.fromkeys(self.kinds) for s in rising)]

    def steps(self) -> list[Step]:
        """One test per condition that has not been tested before."""
        return [
            Step(
                f"test: {condition.title}",
                10,
                partial(self._is_done, condition),
                partial(self._test, condition),
            )
            for condition in self.conditions()
        ]

    def measurements(self) -> list[Measurement]:
        """The results of all conditions; every step must be done."""
        return [
            Measurement(
                condition, self._record(condition)["metrics"], BoxPairs.load(self._pairs(condition))
            )
            for condition in self.conditions()
        ]

    def config(self, condition: Condition) -> Config:
        """The config with the corruption in its test pipeline and all metrics of the report."""
        cfg = copy.deepcopy(self.cfg)
        cfg.work_dir = str(self.out / "runs")
        if condition != CLEAN:
            for dataset in _datasets(cfg.test_dataloader.dataset):
                dataset.pipeline = insert_corruption(
                    dataset.pipeline, condition.kind, condition.severity
                )
        metrics = cfg.get("test_evaluator") or []
        metrics = [metrics] if isinstance(metrics, dict) else list(metrics)
        present = {str(metric["type"]).rpartition(".")[2] for metric in metrics}
        cfg.test_evaluator = metrics + [{"type": name} for name in METRICS if name not in present]
        return cfg

    @property
    def log(self) -> Path:
        """Where mmengine's output goes."""
        return self.out / "log.txt"

    @cached_property
    def _checkpoint_digest(self) -> str:
        if "://" in self.checkpoint:
            return self.checkpoint
        content = Path(self.checkpoint).read_bytes()
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()

    def _fingerprint(self, condition: Condition) -> str:
        """Changes with anything the result depends on but the images themselves."""
        settings = self.config(condition).to_dict()
        settings.pop("work_dir")
        text = json.dumps(settings, default=str, sort_keys=True) + self._checkpoint_digest
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def _file(self, condition: Condition) -> Path:
        return self.out / "measurements" / f"{condition.name}.json"

    def _pairs(self, condition: Condition) -> Path:
        return self._file(condition).with_suffix(".npz")

    def _record(self, condition: Condition) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self._file(condition).read_text())
        return record

    def _is_done(self, condition: Condition) -> bool:
        if not self._file(condition).is_file() or not self._pairs(condition).is_file():
            return False
        return bool(self._record(condition)["fingerprint"] == self._fingerprint(condition))

    def _test(self, condition: Condition, report: Callable[[float], None]) -> None:
        path = self._file(condition)
        with output_to(self.log):
            metrics = running.test(
                self.config(condition),
                self.checkpoint,
                dump=str(self._pairs(condition)),
                hooks=[ShareHook(report)],
            )
        record = {
            "fingerprint": self._fingerprint(condition),
            "metrics": {name: float(value) for name, value in metrics.items()},
        }
        # Complete or not there at all, so that an interrupted sweep can go on.
        partial_file = path.with_suffix(".partial")
        partial_file.write_text(json.dumps(record, indent=1) + "\n")
        partial_file.replace(path)


def _datasets(dataset: Any) -> Iterator[Any]:
    """The configs of the data sets that have a pipeline, inside any wrappers."""
    if "pipeline" in dataset:
        yield dataset
        return
    inner = dataset.get("datasets", [dataset["dataset"]] if "dataset" in dataset else [])
    if not inner:
        raise DomainError("the config's test data set has no pipeline to put a corruption into.")
    for part in inner:
        yield from _datasets(part)
