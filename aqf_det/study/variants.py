"""Ways to predict the sides of the boxes of one frozen detector."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import load_checkpoint


@dataclass(frozen=True)
class Variant:
    """One way to predict the sides of the same detected boxes.

    Attributes:
        name: Name of its folder and files.
        title: Name in tables.
        flow: Options of the head's ``flow`` that replace those of the detector's config; none for
            the detector's own Gaussian.
        gaussian: Whether the predicted distribution is a Gaussian.
    """

    name: str
    title: str
    flow: Mapping[str, Any] = field(default_factory=dict)
    gaussian: bool = True

    @property
    def has_branch(self) -> bool:
        """Whether there is anything to train."""
        return bool(self.flow)


#: The trained detector itself: its own Gaussian is the published baseline.
DETECTOR = Variant("detector", "Gaussian, KL loss of pixels (as published)")
GAUSSIANS = (
    Variant("gaussian_kl", "Gaussian, KL loss", {"branch": True, "loss": "kl"}),
    Variant("gaussian_nll", "Gaussian, likelihood", {"branch": True, "loss": "nll"}),
    Variant("gaussian_crps", "Gaussian, CRPS", {"branch": True, "loss": "crps"}),
)
QFR = Variant(
    "qfr", "QFR (quantile flow)", {"kind": "quantile", "transformer": "spline"}, gaussian=False
)
# The units of the joint flow's network are dealt out to the four sides.
AR_QFR = Variant(
    "qfr_ar",
    "AR-QFR (joint flow)",
    {**QFR.flow, "dependence": "autoregressive", "hidden": (512,)},
    gaussian=False,
)
CDFR = Variant("cdfr", "CDFR (CDF flow)", {**QFR.flow, "kind": "cdf"}, gaussian=False)


def variant_config(base: Config, variant: Variant) -> Config:
    """The detector's config with the variant's flow; the weights will come from a checkpoint."""
    cfg = copy.deepcopy(base)
    cfg.model.bbox_head.flow = {**cfg.model.bbox_head.get("flow", {}), **variant.flow}
    cfg.model.backbone.weights = None
    return cfg


def build_detector(cfg: Config, checkpoint: str | Path) -> Any:
    """The config's detector on the CPU with the weights of a checkpoint."""
    init_default_scope(cfg.get("default_scope", "mmdet"))
    detector = MODELS.build(cfg.model)
    load_checkpoint(detector, str(checkpoint), map_location="cpu")
    return detector
