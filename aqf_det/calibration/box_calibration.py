"""What was learned from held-out boxes, carried by the checkpoint and applied to predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aqf_core.errors import AQFError, LevelError, ShapeError
from aqf_core.recalibration import RECALIBRATIONS, Recalibration, make_recalibration
from aqf_core.validation import check_finite, lookup

from ..models.box_distribution import BoxDistribution
from .conformal import STANDARD, ConformalSides
from .recalibrated_boxes import RecalibratedBoxes

#: From so many boxes on, their frequencies themselves are better than a smooth map.
MANY_BOXES = 1000


class CalibrationMismatchError(AQFError, RuntimeError):
    """A calibration that belongs to other predictions than those it is asked to repair."""


class BoxCalibration(nn.Module):
    """Recalibration of the four sides of boxes, and conformal bounds; part of a head's weights.

    It stores the base values of held-out boxes, from which all maps and bounds follow. Without any
    (a detector that was never calibrated) it adds nothing to the weights and does nothing.

    Because its tensors travel with the weights, whatever loads a calibrated checkpoint predicts
    calibrated distributions. Loading a checkpoint without calibration forgets an earlier one.

    Example:
        >>> calibration = BoxCalibration()
        >>> calibration.fitted, len(calibration.state_dict())
        (False, 0)
        >>> calibration.store(2 * torch.randn(500, 4))  # the predictions were overconfident
        >>> calibration.fitted, calibration.kind, calibration.groups
        (True, 'spline', 1)
    """

    base_values: Tensor | None
    group: Tensor | None
    edges: Tensor | None
    header: Tensor | None
    _NAMES = ("base_values", "group", "edges", "header")

    def __init__(self) -> None:
        super().__init__()
        self._maps: list[Recalibration] = []
        self.clear()
        self.register_load_state_dict_pre_hook(_make_room)

    @property
    def fitted(self) -> bool:
        """Whether there is anything to apply."""
        return self.base_values is not None

    @property
    def kind(self) -> str:
        """Name of the recalibration, see `aqf_core.recalibration`."""
        return str(self._facts()["kind"])

    @property
    def settings(self) -> str:
        """The options of prediction that it belongs to."""
        return str(self._facts()["settings"])

    @property
    def groups(self) -> int:
        """Number of size groups."""
        return 1 + len(self._stored("edges"))

    def clear(self) -> None:
        """Forget everything."""
        self._maps = []
        for name in self._NAMES:
            self.register_buffer(name, None)

    def store(
        self,
        base_values: Tensor,
        sizes: Tensor | None = None,
        edges: Sequence[float] = (),
        kind: str = "auto",
        settings: str = "",
    ) -> None:
        """Learn from held-out boxes.

        Args:
            base_values: (n, 4), z = Phi^-1(F(x)) of the true coordinates x.
            sizes: (n,) sqrt(area) of the predicted boxes in pixels of the original image; needed
                with edges.
            edges: Ascending sizes that separate groups with maps of their own.
            kind: ``"isotonic"``, ``"spline"``, ``"conformal"``, or ``"auto"``: isotonic where every
                group has a thousand boxes or more, a spline otherwise.
            settings: The options of prediction that made the predictions.
        """
        z = check_finite(base_values.detach().float(), "base_values")
        if z.dim() != 2 or z.shape[1] != 4:
            raise ShapeError(f"base_values must have shape (n, 4), got {tuple(z.shape)}.")
        if list(edges) != sorted(set(edges)) or any(edge <= 0 for edge in edges):
            raise LevelError(f"edges must be positive and ascend, got {tuple(edges)}.")
        limits = torch.tensor([float(edge) for edge in edges])
        if sizes is None:
            if len(limits):
                raise ShapeError("groups of sizes need the sizes of the boxes.")
            sizes = z.new_zeros(len(z))
        group = torch.bucketize(sizes.to(z), limits.to(z)).to(torch.uint8)
        counts = torch.bincount(group.long(), minlength=len(limits) + 1)
        if int(counts.min()) < 2:
            raise ShapeError(
                f"calibration needs at least 2 held-out boxes per group of sizes, got "
                f"{counts.tolist()}."
            )
        if kind == "auto":
            kind = "isotonic" if int(counts.min()) >= MANY_BOXES else "spline"
        lookup(kind, RECALIBRATIONS, "recalibration")
        facts = json.dumps({"kind": kind, "settings": settings}).encode()
        self.clear()
        self.base_values, self.group, self.edges = z.clone(), group, limits
        self.header = torch.tensor(list(facts), dtype=torch.uint8)

    def maps(self) -> list[Recalibration]:
        """The fitted recalibration of each group; fitted once, when first needed."""
        if not self._maps:
            # Predictions run in inference mode, where nothing could be fitted by gradients.
            with torch.inference_mode(False):
                self._maps = [
                    make_recalibration(self.kind, per_column=True).fit(STANDARD, z.clone())
                    for z in self.conformal().values
                ]
        return self._maps

    def conformal(self) -> ConformalSides:
        """Bounds with guaranteed coverage, in base values of the predictions before repair."""
        z, group = self._stored("base_values").cpu(), self._stored("group").cpu()
        return ConformalSides(tuple(z[group == g] for g in range(self.groups)))

    def group_of(self, sizes: Tensor) -> Tensor:
        """The group (N,) of boxes of sizes (N,), sqrt(area) in pixels of the original image."""
        return torch.bucketize(sizes, self._stored("edges").to(sizes))

    def recalibrate(
        self, distribution: BoxDistribution, sizes: Tensor, settings: str
    ) -> RecalibratedBoxes:
        """The repaired distribution of N boxes.

        Args:
            distribution: As predicted.
            sizes: (N,) sqrt(area) of the boxes in pixels of the original image.
            settings: The options of prediction that made it.

        Raises:
            CalibrationMismatchError: The calibration belongs to other options.
        """
        if settings != self.settings:
            raise CalibrationMismatchError(
                f"the checkpoint was calibrated for predictions with [{self.settings}], these are "
                f"made with [{settings}]; calibrate it with these options (tools/calibrate.py), or "
                "set test_cfg.calibrated=False."
            )
        return RecalibratedBoxes(distribution, self.maps(), self.group_of(sizes))

    def bounds(
        self, distribution: BoxDistribution, sizes: Tensor, coverage: float
    ) -> dict[str, Tensor]:
        """Coordinates that keep a coverage, however few the held-out boxes were.

        Args:
            distribution: What `recalibrate` returned.
            sizes: As for `recalibrate`.
            coverage: In (0, 1).

        Returns:
            With at least this probability, each by itself: ``interval`` (N, 2, 4) holds a side;
            ``band`` (N, 2, 4) holds all four sides together; the object lies inside ``outer``
            (N, 4); ``inner`` (N, 4) lies inside the object (an axis on which nothing is that
            certain collapses to a point).
        """
        if not 0 < coverage < 1:
            raise LevelError(f"test_cfg.conformal must lie inside (0, 1), got {coverage}.")
        if not isinstance(distribution, RecalibratedBoxes):
            raise CalibrationMismatchError(
                "test_cfg.conformal needs a calibrated checkpoint (tools/calibrate.py) and "
                "test_cfg.calibrated=True."
            )
        group, known = self.group_of(sizes), self.conformal()
        outer = known.band(coverage, group, inner=False)
        inner = known.band(coverage, group, outer=False)
        # Unbounded ends are not read; any finite number does.
        low, high = distribution.at_base(outer.where(outer.isfinite(), 0.0)).unbind(1)
        inner_low, inner_high = distribution.at_base(inner.where(inner.isfinite(), 0.0)).unbind(1)
        near, far = inner_high[:, :2], inner_low[:, 2:]
        middle = (near + far) / 2
        return {
            "interval": distribution.at_base(known.interval(coverage, group)),
            "band": distribution.at_base(known.band(coverage, group)),
            "outer": torch.cat([low[:, :2], high[:, 2:]], -1),
            "inner": torch.cat([torch.minimum(near, middle), torch.maximum(far, middle)], -1),
        }

    def refuse_training(self) -> None:
        """Raise when there is a calibration: it would not fit the weights any more."""
        if self.fitted:
            raise CalibrationMismatchError(
                "this detector is calibrated, which training would invalidate; call "
                "bbox_head.calibration.clear() first and calibrate again afterwards."
            )

    def _stored(self, name: str) -> Tensor:
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            raise AQFError("this detector is not calibrated; run tools/calibrate.py.")
        return value

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(bytes(self._stored("header").tolist()))
        return facts


def _make_room(module: nn.Module, state: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Before weights are loaded: tensors of the checkpoint's sizes, or none."""
    assert isinstance(module, BoxCalibration)
    module.clear()
    for name in module._NAMES:
        if prefix + name in state:
            setattr(module, name, torch.empty_like(state[prefix + name]))
