"""The result of a detector for one image: boxes, and what is known about each of their sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .quantile_tables import check_open_levels
from .side_distributions import FloatArray, SideDistributions
from .visualization import MIN_SIDE, draw_quantile_boxes, enlargement

if TYPE_CHECKING:
    from mmdet.structures import DetDataSample


@dataclass(frozen=True)
class BoxPredictions:
    """Everything detected in one image, in pixels of that image.

    Attributes:
        boxes: (N, 4) point predictions, xyxy.
        scores: (N,) in falling order.
        labels: (N,) class indices.
        classes: Names of all classes.
        levels: (K,) the levels asked for.
        quantiles: (N, K, 4) quantiles of the sides at `levels`.
        std: (N, 4) standard deviation of the sides.
        sides: The whole distributions behind `quantiles`.
        variance_aleatoric: (N, 4) with MC dropout: the part of the variance that lies in the image.
        variance_epistemic: (N, 4) with MC dropout: the part that lies in the model.
        conformal_interval: (N, 2, 4) of a calibrated detector, with the coverage asked for: ends of
            an interval for each side.
        conformal_band: (N, 2, 4) likewise: intervals that hold all four sides together.
        conformal_outer: (N, 4) likewise: boxes that hold the whole object.
        conformal_inner: (N, 4) likewise: boxes that lie inside the object.
        image: (H, W, 3) the image, BGR.
        path: Where the image came from, or None.
    """

    boxes: FloatArray
    scores: FloatArray
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    levels: FloatArray
    quantiles: FloatArray
    std: FloatArray
    sides: SideDistributions
    variance_aleatoric: FloatArray | None = None
    variance_epistemic: FloatArray | None = None
    conformal_interval: FloatArray | None = None
    conformal_band: FloatArray | None = None
    conformal_outer: FloatArray | None = None
    conformal_inner: FloatArray | None = None
    image: NDArray[np.uint8] | None = None
    path: str | None = None

    @classmethod
    def from_data_sample(
        cls,
        sample: DetDataSample,
        levels: Sequence[float] | None = None,
        classes: Sequence[str] = (),
        image: NDArray[np.uint8] | None = None,
    ) -> BoxPredictions:
        """Read what a detector of this package predicted for one image.

        Args:
            sample: With ``pred_instances.bbox_quantiles`` and their levels in the metainfo.
            levels: Levels of `quantiles`; all predicted ones by default.
            classes: Names of the classes.
            image: (H, W, 3) BGR, for pictures.
        """
        found = sample.pred_instances
        if "bbox_quantiles" not in found or "quantile_levels" not in sample.metainfo:
            raise ValueError(
                "the detector predicted no box quantiles; it must be a FlowDetector, "
                "FlowSingleStageDetector or FlowTwoStageDetector."
            )

        def optional(name: str) -> FloatArray | None:
            return found[name].detach().cpu().double().numpy() if name in found else None

        def needed(name: str) -> FloatArray:
            return found[name].detach().cpu().double().numpy()

        stored = np.asarray(sample.metainfo["quantile_levels"], dtype=float)
        values = needed("bbox_quantiles").reshape(-1, len(stored), 4)
        sides = SideDistributions(stored, values, optional("bbox_samples"))
        wanted = stored if levels is None else check_open_levels(levels)
        order = np.argsort(-needed("scores"), kind="stable")
        whole = cls(
            boxes=needed("bboxes").reshape(-1, 4),
            scores=needed("scores"),
            labels=found["labels"].detach().cpu().numpy().astype(np.int64),
            classes=tuple(classes),
            levels=wanted,
            quantiles=sides.quantile(wanted),
            std=needed("bbox_std").reshape(-1, 4),
            sides=sides,
            variance_aleatoric=optional("bbox_var_aleatoric"),
            variance_epistemic=optional("bbox_var_epistemic"),
            conformal_interval=optional("bbox_interval"),
            conformal_band=optional("bbox_band"),
            conformal_outer=optional("bbox_outer"),
            conformal_inner=optional("bbox_inner"),
            image=image,
            path=sample.metainfo.get("img_path"),
        )
        return whole[order]

    @property
    def names(self) -> list[str]:
        """The class name of every box."""
        return [self.classes[i] if i < len(self.classes) else str(i) for i in self.labels]

    @property
    def samples(self) -> FloatArray | None:
        """(N, S, 4) boxes drawn from the joint distribution, where the detector has one."""
        return self.sides.samples

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, index: Any) -> BoxPredictions:
        """The chosen boxes (an index, slice, mask or list of indices), still as a collection."""
        chosen = np.atleast_1d(np.arange(len(self))[index])
        per_box = (
            "boxes",
            "scores",
            "labels",
            "quantiles",
            "std",
            "variance_aleatoric",
            "variance_epistemic",
            "conformal_interval",
            "conformal_band",
            "conformal_outer",
            "conformal_inner",
        )
        picked: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value[chosen]
            for name in per_box
        }
        return replace(self, sides=self.sides[chosen], **picked)

    def __iter__(self) -> Iterator[BoxPredictions]:
        return (self[i] for i in range(len(self)))

    def quantile(self, levels: ArrayLike) -> FloatArray:
        """Quantiles at any level: (N, 4) for one, (N, L, 4) for a list."""
        return self.sides.quantile(levels)

    def cdf(self, positions: ArrayLike) -> FloatArray:
        """P(side <= position), (N, 4)."""
        return self.sides.cdf(positions)

    def interval(self, coverage: float) -> tuple[FloatArray, FloatArray]:
        """The central interval of each side: (N, 4) low, (N, 4) high."""
        return self.sides.interval(coverage)

    def outer_box(self, credibility: float = 0.9) -> FloatArray:
        """(N, 4): holds the whole object with at least this probability."""
        return self.sides.outer_box(credibility)

    def inner_box(self, credibility: float = 0.9) -> FloatArray:
        """(N, 4): lies inside the object with at least this probability."""
        return self.sides.inner_box(credibility)

    def prob_reaches(self, region: ArrayLike) -> FloatArray:
        """P(the object reaches into a region): (N,) or, for M regions, (N, M)."""
        return self.sides.prob_reaches(region)

    def draw(
        self,
        score_threshold: float = 0.3,
        quantiles: bool = True,
        truths: ArrayLike | None = None,
        min_side: int = MIN_SIDE,
    ) -> NDArray[np.uint8]:
        """A picture (H, W, 3), RGB: thick boxes, thin lines at each side's quantiles .1 ... .9.

        Args:
            score_threshold: Boxes below it are left out.
            quantiles: Whether to draw the quantile lines.
            truths: (M, 4) true boxes, drawn dashed.
            min_side: Smaller images are enlarged until their longer side has this many pixels.
        """
        if self.image is None:
            raise ValueError("this prediction has no image to draw on; give one when predicting.")
        factor = enlargement(self.image.shape, min_side)
        picture: Any = cv2.cvtColor(self.image, cv2.COLOR_BGR2RGB)
        if factor > 1:
            picture = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
        shown = self[self.scores >= score_threshold]
        captions = [
            f"{name} {score:.2f} \u00b1{spread:.1f} px"
            for name, score, spread in zip(
                shown.names, shown.scores, shown.std.mean(1), strict=True
            )
        ]
        return draw_quantile_boxes(
            picture,
            shown.boxes * factor,
            [int(label) for label in shown.labels],
            quantiles=shown.sides.values * factor if quantiles else None,
            levels=shown.sides.levels if quantiles else None,
            captions=captions,
            truths=None if truths is None else np.asarray(truths, dtype=float) * factor,
        )

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture of `draw` (same options) to a PNG or JPEG file and return its path."""
        target = Path(path)
        if target.suffix.lower() not in (".png", ".jpg", ".jpeg"):
            raise ValueError(f"cannot save a picture as {target.name!r}; use .png or .jpg.")
        picture = cv2.cvtColor(self.draw(**options), cv2.COLOR_RGB2BGR)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not cv2.imwrite(str(target), picture):
            raise OSError(f"cannot write {target}.")
        return target

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON (without image and samples)."""
        return {
            "path": self.path,
            "levels": self.levels.tolist(),
            "detections": [
                {
                    "label": name,
                    "score": float(self.scores[i]),
                    "box": self.boxes[i].tolist(),
                    "std": self.std[i].tolist(),
                    "quantiles": self.quantiles[i].tolist(),
                }
                for i, name in enumerate(self.names)
            ],
        }
