"""The known distribution of a side hidden behind an occluder, as stored in the demo annotations.

An object runs behind an occluder at ``edge`` and ends ``extent * B`` pixels further, where B in (0,
1) follows a mixture of Kumaraswamy laws, ``P(B <= b) = sum_i w_i (1 - (1 - b^a_i)^c_i)``. B is
independent of everything visible, so this *is* the conditional distribution of the side given the
image.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aqf_core.errors import LevelError

SIDES = ("left", "top", "right", "bottom")  # in the order of box coordinates x1, y1, x2, y2

_CORNERS = ("xmin", "ymin", "xmax", "ymax")

Component = tuple[float, float, float]  # weight, a, c


@dataclass(frozen=True)
class ExtensionLaw:
    """A mixture of Kumaraswamy laws on (0, 1), given as ``(weight, a, c)`` per component."""

    components: tuple[Component, ...]

    def cdf(self, b: ArrayLike) -> NDArray[np.float64]:
        """P(B <= b), elementwise."""
        inside: NDArray[np.float64] = np.clip(np.asarray(b, float), 0.0, 1.0)
        total = np.zeros_like(inside)
        for weight, a, c in self.components:
            total += weight * (1 - (1 - inside**a) ** c)
        return total

    def quantile(self, levels: ArrayLike) -> NDArray[np.float64]:
        """The b with P(B <= b) = level, by bisection to 2**-52."""
        levels = np.asarray(levels, float)
        if not np.all((levels > 0) & (levels < 1)):
            raise LevelError(f"quantile levels must lie strictly inside (0, 1), got {levels}.")
        low, high = np.zeros_like(levels), np.ones_like(levels)
        for _ in range(52):
            middle = (low + high) / 2
            below = self.cdf(middle) < levels
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def sample(self, rng: np.random.Generator) -> float:
        """Draw one b: choose a component, then invert its distribution function."""
        weights = [weight for weight, _, _ in self.components]
        _, a, c = self.components[int(rng.choice(len(weights), p=weights))]
        return float((1 - (1 - rng.random()) ** (1 / c)) ** (1 / a))


@dataclass(frozen=True)
class HiddenSideTruth:
    """The true distribution of one hidden side, in the pixel frame of loaded boxes.

    Attributes:
        side: ``left``, ``top``, ``right`` or ``bottom``.
        edge: Where the object disappears behind the occluder.
        extent: Largest possible distance of the side behind the edge.
        law: Distribution of that distance divided by ``extent``.
    """

    side: str
    edge: float
    extent: float
    law: ExtensionLaw

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise ValueError(f"side must be one of {SIDES}, got {self.side!r}.")

    @property
    def coordinate(self) -> int:
        """Position of the side in an xyxy box."""
        return SIDES.index(self.side)

    @property
    def direction(self) -> int:
        """+1 where the object extends towards larger coordinates, else -1."""
        return 1 if self.side in ("right", "bottom") else -1

    def cdf(self, x: ArrayLike) -> NDArray[np.float64]:
        """P(side <= x) for pixel positions ``x``, elementwise."""
        share = self.law.cdf(self.direction * (np.asarray(x, float) - self.edge) / self.extent)
        return share if self.direction > 0 else 1 - share

    def quantile(self, levels: ArrayLike) -> NDArray[np.float64]:
        """Pixel positions of the side's quantiles, increasing in ``levels``."""
        levels = np.asarray(levels, float)
        inner = levels if self.direction > 0 else 1 - levels
        return self.edge + self.direction * self.extent * self.law.quantile(inner)


def hidden_side_truth(annotation: ET.Element) -> HiddenSideTruth | None:
    """The truth stored in a demo ``<object>`` element; None where all four sides are visible."""
    side = (annotation.findtext("occluded_side") or "none").strip()
    if side == "none":
        return None
    truth = annotation.find("hidden_truth")
    if truth is None:
        raise ValueError("an <object> with <occluded_side> has no <hidden_truth>.")
    components: Sequence[Component] = [
        (float(item.attrib["weight"]), float(item.attrib["a"]), float(item.attrib["c"]))
        for item in truth.findall("component")
    ]
    return HiddenSideTruth(
        side=side,
        edge=float(truth.findtext("edge", "nan")) - 1,  # the loader subtracts 1 from boxes as well
        extent=float(truth.findtext("extent", "nan")),
        law=ExtensionLaw(tuple(components)),
    )


def read_hidden_sides(
    xml_path: str | Path,
) -> list[tuple[NDArray[np.float64], HiddenSideTruth | None]]:
    """Loaded boxes ``(4,)``, each with the truth about its hidden side or None."""
    root = ET.parse(xml_path).getroot()
    return [
        (
            np.array(
                [float(item.findtext(f"bndbox/{key}", "nan")) - 1 for key in _CORNERS], dtype=float
            ),
            hidden_side_truth(item),
        )
        for item in root.findall("object")
    ]
