"""Pictures of test photographs, chosen by a rule and not by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..evaluation import BoxPairs
from ..inference import QuantileInferencer
from .plan import Run
from .run import Study


def image_uncertainty(pairs: BoxPairs, score: float) -> NDArray[np.float64]:
    """How unsure the matched boxes of each image are, (images,); NaN for images without one.

    Mean over an image's boxes from ``score`` on and over their sides of standard deviation / length
    of the box in that direction.
    """
    length = np.clip(pairs.box[:, 2:] - pairs.box[:, :2], 1e-6, None)
    relative = (pairs.std / np.tile(length, 2)).mean(1)
    shown = pairs.strict & (pairs.score >= score)
    count = len(pairs.image_ids)
    number = np.bincount(pairs.image[shown], minlength=count)
    total = np.bincount(pairs.image[shown], relative[shown], minlength=count)
    with np.errstate(invalid="ignore"):
        return np.where(number > 0, total / number, np.nan)


def chosen_images(pairs: BoxPairs, count: int, score: float) -> dict[str, list[str]]:
    """The ``count`` most certain, most typical (around the median) and most uncertain images."""
    value = image_uncertainty(pairs, score)
    order = np.argsort(value, kind="stable")[: int(np.isfinite(value).sum())]
    count = min(count, len(order))
    middle = (len(order) - count) // 2
    parts = {
        "most_certain": order[:count],
        "median": order[middle : middle + count],
        "most_uncertain": order[len(order) - count :][::-1],
    }
    return {name: [pairs.image_ids[i] for i in rows] for name, rows in parts.items()}


def draw_gallery(study: Study, run: Run) -> list[Path]:
    """Draw the chosen test images with the calibrated boxes of a finished run, truths dashed."""
    dataset = study.loader("test").dataset
    known = {str(dataset.get_data_info(i)["img_id"]): i for i in range(len(dataset))}
    checkpoint = study.run_file(run, "branch.pth").with_name(f"{run.name}.pth")
    inferencer = QuantileInferencer(
        study.config(run.variant, run.dropout), str(checkpoint), device="cpu"
    )
    written = []
    count, score = study.size.gallery, study.size.shown_score
    for rule, names in chosen_images(study.pairs(run, True), count, score).items():
        for place, name in enumerate(names):
            info = dataset.get_data_info(known[name])
            truths = np.array([box["bbox"] for box in info["instances"]]).reshape(-1, 4)
            found = inferencer(info["img_path"])
            assert not isinstance(found, list)
            path = study.out / "gallery" / f"{rule}_{place + 1}_{Path(name).name}.png"
            written.append(found.save(path, truths=truths, score_threshold=score))
    return written
