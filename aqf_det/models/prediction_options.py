"""What a head's ``test_cfg`` may ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from aqf_core.errors import LevelError, UnknownNameError

from ..quantile_tables import check_levels
from .voting import VOTING

__all__ = ["PredictionOptions", "resolve_levels"]


def resolve_levels(levels: int | Sequence[float]) -> tuple[float, ...]:
    """Levels strictly inside (0, 1), ascending; an int n stands for i / (n + 1), i = 1 ... n."""
    if isinstance(levels, int):
        if levels < 1:
            raise LevelError(f"the number of levels must be at least 1, got {levels}.")
        return tuple(i / (levels + 1) for i in range(1, levels + 1))
    return tuple(check_levels(levels).tolist())


@dataclass(frozen=True)
class PredictionOptions:
    """A head's ``test_cfg``.

    Attributes:
        score_thr: Smallest score of a detection (confidence times class probability).
        nms: Config of the per-class suppression.
        nms_pre: Candidates that enter it.
        max_per_img: Detections kept.
        levels: Levels of ``bbox_quantiles``; an int n stands for i / (n + 1).
        n_samples: Joint samples per box (``bbox_samples``), 0 for none.
        mc_passes: MC-dropout passes T; 1 is the deterministic network.
        mc_seed: Seed of the T networks.
        mc_moves_boxes: Whether boxes and scores are means over the passes. If not they are those of
            the deterministic network, so that MC dropout changes distributions only.
        flip: Whether the mirror image is looked at as well.
        ensemble: Checkpoints of further members of an ensemble.
        voting: Whether suppressed candidates vote on the sides of kept boxes: ``"variance"`` or
            ``"quantile"`` (see :mod:`~aqf_det.models.voting`), None for no.
        voting_width: How quickly a vote fades with the overlap.
        rescore: Whether scores are multiplied by 1 - uncertainty (see
            :func:`~aqf_det.models.prediction.rescored`).
        calibrated: Whether a calibrated checkpoint predicts calibrated distributions.
        conformal: Coverage of ``bbox_interval``, ``bbox_band``, ``bbox_outer`` and ``bbox_inner``,
            see :meth:`~aqf_det.calibration.BoxCalibration.bounds`; needs a calibrated checkpoint.
    """

    score_thr: float = 0.1
    nms: Mapping[str, Any] = field(default_factory=lambda: {"type": "nms", "iou_threshold": 0.45})
    nms_pre: int = 1000
    max_per_img: int = 100
    levels: tuple[float, ...] = resolve_levels(199)
    n_samples: int = 0
    mc_passes: int = 1
    mc_seed: int = 0
    mc_moves_boxes: bool = True
    flip: bool = False
    ensemble: tuple[str, ...] = ()
    voting: str | None = None
    voting_width: float = 0.025
    rescore: bool = False
    calibrated: bool = True
    conformal: float | None = None

    @property
    def mixes(self) -> bool:
        """Whether distributions are mixtures of several predictions."""
        return self.mc_passes > 1 or self.flip or len(self.ensemble) > 0

    @property
    def settings(self) -> str:
        """The options that change distributions; what a calibration is tied to."""
        facts = {
            "mc_passes": self.mc_passes if self.mc_passes > 1 else None,
            "mc_seed": self.mc_seed if self.mc_passes > 1 else None,
            "flip": self.flip or None,
            "members": 1 + len(self.ensemble) if self.ensemble else None,
            "voting": self.voting,
            "voting_width": self.voting_width if self.voting else None,
        }
        return ", ".join(f"{name}={value}" for name, value in facts.items() if value is not None)

    @classmethod
    def parse(cls, test_cfg: Mapping[str, Any]) -> PredictionOptions:
        """Check a ``test_cfg`` and fill in defaults."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(test_cfg) - known)
        if unknown:
            raise UnknownNameError(
                f"unknown test_cfg option {unknown[0]!r}; choose from {', '.join(sorted(known))}."
            )
        values = dict(test_cfg)
        values["levels"] = resolve_levels(values.get("levels", 199))
        ensemble = values.get("ensemble") or ()
        values["ensemble"] = (ensemble,) if isinstance(ensemble, str) else tuple(ensemble)
        voting = values.get("voting")
        if voting is not None and voting not in VOTING:
            raise UnknownNameError(f"unknown voting {voting!r}; choose from {', '.join(VOTING)}.")
        if values.get("voting_width", 1.0) <= 0:
            raise ValueError(f"voting_width must be positive, got {values['voting_width']}.")
        return cls(**values)
