"""What the demo compares, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One way to predict the sides of the same detected boxes.

    Attributes:
        name: Name of its folder and files.
        title: Name in tables.
        config: File in ``configs/``.
        flow: Replaces single options of the config's ``bbox_head.flow``.
        gaussian: Whether the predicted distribution is a Gaussian.
    """

    name: str
    title: str
    config: str
    flow: Mapping[str, Any] = field(default_factory=dict)
    gaussian: bool = True


#: The trained detector itself: its own Gaussian is the published baseline.
DETECTOR = Variant("detector", "Gaussian, KL loss of pixels (as published)", "demo_gaussian.py")
QFR = Variant("qfr", "QFR (quantile flow)", "demo_qfr.py", gaussian=False)
#: Branches on the frozen detector; all have the same trunk, so their boxes and mAP are the same.
BRANCHES = (
    Variant("gaussian_kl", "Gaussian, KL loss", "demo_gaussian_nll.py", {"loss": "kl"}),
    Variant("gaussian_nll", "Gaussian, likelihood", "demo_gaussian_nll.py"),
    Variant("gaussian_crps", "Gaussian, CRPS", "demo_gaussian_crps.py"),
    QFR,
)
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
