"""What a study trains and tests, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .variants import AR_QFR, CDFR, DETECTOR, GAUSSIANS, QFR, Variant

VARIANTS = (DETECTOR, *GAUSSIANS, QFR, AR_QFR, CDFR)
#: Where branches learn: from images that the detector has not seen, or from its own.
SETTINGS = ("unseen", "seen")
#: Probability of dropout of the rows with MC dropout ("VD").
DROPOUT = 0.15


@dataclass(frozen=True)
class Run:
    """One branch: trained, calibrated and tested.

    Attributes:
        variant: What is predicted.
        dropout: Whether with MC dropout.
        setting: Which images the branch learned from.
        seed: Of its initial weights, batches and levels.

    Example:
        >>> Run(QFR, True, "unseen", 2).name
        'unseen_qfr_vd_2'
    """

    variant: Variant
    dropout: bool
    setting: str
    seed: int

    @property
    def row(self) -> str:
        """Name of the variant, with or without MC dropout."""
        return self.variant.name + ("_vd" if self.dropout else "")

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.setting}_{self.row}_{self.seed}"

    @property
    def title(self) -> str:
        """Name in tables."""
        return self.variant.title + (" + VD" if self.dropout else "")


@dataclass(frozen=True)
class StudySize:
    """How much training and testing.

    Attributes:
        seeds: Branches of each kind.
        folds: Folds of the unseen images: each is predicted by a branch that learned from others.
        pretraining: Training steps of a branch on the detector's own images. With "seen" images
            that is all; with "unseen" ones, which are fewer, it is where the training starts.
        steps: Further steps on unseen images.
        branch: Size of a branch, options of its ``flow``. It is told where the picture ends:
            objects that are cut there err to one side only.
        training: Further options of :func:`~aqf_det.engine.cached_branch.train_branch`.
        rounds: Passes over the images of each setting, with random augmentation, that collect
            features for training.
        passes: MC-dropout passes.
        samples: Joint samples of each box, for the energy score.
        sizes: Edges of the size groups that are calibrated separately, where they are large enough.
        replicates: Bootstrap replicates.
        gallery: Photographs drawn per rule.
        shown_score: Least score of the boxes that the gallery shows and chooses by.
        variants: What is compared.
    """

    seeds: int = 3
    folds: int = 5
    pretraining: int = 3000
    steps: int = 150
    branch: Mapping[str, Any] = field(
        default_factory=lambda: {"width": 128, "hidden": (128,), "borders": True}
    )
    training: Mapping[str, Any] = field(default_factory=lambda: {"batch_size": 128})
    rounds: Mapping[str, int] = field(default_factory=lambda: {"unseen": 5, "seen": 2})
    passes: int = 10
    samples: int = 200
    sizes: tuple[float, ...] = (32.0, 96.0)
    replicates: int = 1000
    gallery: int = 6
    shown_score: float = 0.3
    variants: tuple[Variant, ...] = VARIANTS


def planned_runs(size: StudySize) -> list[Run]:
    """All runs, the most important first: an interrupted study already says something."""
    runs = []
    for seed in range(size.seeds):
        for setting in SETTINGS:
            for dropout in (False, True):
                for variant in size.variants:
                    # The detector's own Gaussian has nothing to train.
                    if variant.has_branch or (seed == 0 and setting == "unseen"):
                        runs.append(Run(variant, dropout, setting, seed))
    return runs
