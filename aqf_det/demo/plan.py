"""What the demo compares, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass

from ..study.variants import DETECTOR, GAUSSIANS, QFR

__all__ = ["BRANCHES", "DETECTOR", "QFR", "VARIANTS", "DemoSize"]

#: Branches on the frozen detector; all have the same trunk, so their boxes and mAP are the same.
BRANCHES = (*GAUSSIANS, QFR)
VARIANTS = (DETECTOR, *BRANCHES)


@dataclass(frozen=True)
class DemoSize:
    """How much data and training the demo uses.

    Attributes:
        train: Images the detector is trained on.
        val: Images the branches are trained on: on its own images a detector errs less, and
            branches would learn to be too sure.
        test: Test images.
        image_size: Side of the images in pixels.
        epochs: Epochs of the detector.
        feature_rounds: Passes, with random flips, that collect the frozen detector's features.
        branch_steps: Steps of 128 objects for each branch.
        gallery: Pictures drawn.
        seed: Seed of the data.
    """

    train: int = 2400
    val: int = 3200
    test: int = 400
    image_size: int = 160
    epochs: int = 10
    feature_rounds: int = 2
    branch_steps: int = 1500
    gallery: int = 12
    seed: int = 0
