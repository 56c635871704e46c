"""The demo's pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..box_predictions import BoxPredictions
from ..datasets import read_hidden_sides
from ..evaluation.scores import CALIBRATION_LEVELS
from ..inference import QuantileInferencer
from ..study.variants import Variant
from .plan import QFR

if TYPE_CHECKING:
    from .report import Comparison
    from .run import Demo

Picture = NDArray[np.uint8]


def scenes_with_hidden_sides(data: Path, count: int) -> list[tuple[Path, NDArray[np.float64]]]:
    """The first test images in which something is hidden, with their true boxes (M, 4)."""
    found: list[tuple[Path, NDArray[np.float64]]] = []
    for name in (data / "ImageSets/Main/test.txt").read_text().split():
        objects = read_hidden_sides(data / "Annotations" / f"{name}.xml")
        if any(truth is not None for _, truth in objects):
            boxes = np.stack([box for box, _ in objects])
            found.append((data / "JPEGImages" / f"{name}.jpg", boxes))
        if len(found) == count:
            break
    return found


def predictions(demo: Demo, variant: Variant, paths: Sequence[Path]) -> list[BoxPredictions]:
    """What a variant predicts for some images."""
    inferencer = QuantileInferencer(demo.config(variant), demo.checkpoint(variant), device="cpu")
    found = inferencer(list(paths))
    assert isinstance(found, list)
    return found


def draw_gallery(demo: Demo, gaussian: Variant) -> None:
    """Draw test scenes with QFR's boxes, and some beside those of the best Gaussian.

    Scenes are the first ones with a hidden side, not chosen ones. True boxes are dashed.
    """
    folder = demo.out / "gallery"
    scenes = scenes_with_hidden_sides(demo.data, demo.size.gallery)
    paths = [path for path, _ in scenes]
    flow = predictions(demo, QFR, paths)
    for (path, truths), found in zip(scenes, flow, strict=True):
        found.save(folder / f"{path.stem}.png", truths=truths)
    few = slice(0, 4)
    normal = predictions(demo, gaussian, paths[few])
    rows = [
        [
            found.draw(min_side=480, truths=truths)
            for found, (_, truths) in zip(row, scenes, strict=False)
        ]
        for row in (normal, flow[few])
    ]
    save_picture(folder / "gaussian_and_qfr.png", with_titles(rows, [gaussian.title, QFR.title]))


def with_titles(rows: Sequence[Sequence[Picture]], titles: Sequence[str]) -> Picture:
    """Rows of equally large pictures, each under its title."""
    import cv2

    lines = []
    for pictures, title in zip(rows, titles, strict=True):
        line = np.hstack([np.pad(p, ((4, 4), (4, 4), (0, 0))) for p in pictures])
        head = np.full((40, line.shape[1], 3), 255, np.uint8)
        cv2.putText(head, title, (8, 28), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (0, 0, 0), 1, cv2.LINE_AA)
        lines += [head, line]
    return np.vstack(lines)


def save_picture(path: Path, picture: Picture) -> None:
    """Write an RGB picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path, optimize=True)


def draw_hidden_sides(comparison: Comparison, path: Path) -> None:
    """Predicted and true quantile functions of hidden sides, one panel per class."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    qfr, gaussian = comparison.qfr, comparison.best_gaussian
    classes = qfr.pairs.classes
    figure = Figure(figsize=(4.2 * len(classes), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    for label, name in enumerate(classes):
        axes: Any = figure.add_subplot(1, len(classes), label + 1)
        for item, colour in ((gaussian, "tab:orange"), (qfr, "tab:blue")):
            mine = item.hidden.label == label
            if not mine.any():
                continue
            low, middle, high = np.quantile(item.hidden.predicted[mine], [0.1, 0.5, 0.9], axis=0)
            axes.fill_between(CALIBRATION_LEVELS, low, high, color=colour, alpha=0.2, lw=0)
            axes.plot(CALIBRATION_LEVELS, middle, color=colour, label=item.variant.title)
        mine = qfr.hidden.label == label
        if mine.any():
            truth = qfr.hidden.true[mine][0]
            axes.plot(CALIBRATION_LEVELS, truth, "k--", lw=1.5, label="truth")
        axes.set(title=name, xlabel="level", ylim=(-0.6, 1.6))
        axes.grid(alpha=0.3)
        if label == 0:
            axes.set_ylabel("distance behind the board's edge,\nshare of the largest possible")
            axes.legend(fontsize=8, loc="upper left")
    figure.suptitle("Quantiles of hidden sides: median and 80 % range over test objects")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def write_collage(demo: Demo, path: Path, limit: int = 300_000) -> int:
    """A small collage of test scenes for documents; returns its size in bytes.

    Args:
        demo: A finished demo.
        path: PNG file to write.
        limit: Largest size in bytes; the palette shrinks until the file fits.
    """
    scenes = scenes_with_hidden_sides(demo.data, 8)
    flow = predictions(demo, QFR, [image for image, _ in scenes])
    tiles = [
        found.draw(min_side=360, truths=truths)
        for found, (_, truths) in zip(flow, scenes, strict=True)
    ]
    framed = [np.pad(t, ((3, 3), (3, 3), (0, 0)), constant_values=255) for t in tiles]
    collage = Image.fromarray(np.vstack([np.hstack(framed[:4]), np.hstack(framed[4:])]))
    for colours in (256, 128, 96, 64, 48, 32):
        buffer = io.BytesIO()
        collage.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= limit:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(buffer.getvalue())
            return buffer.tell()
    raise ValueError(f"the collage cannot be made smaller than {buffer.tell()} bytes.")
