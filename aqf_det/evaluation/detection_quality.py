r"""Probability-based detection quality (PDQ) of boxes whose sides are distributions.

Hall et al., *Probabilistic Object Detection: Definition and Evaluation*, WACV 2020, judge how much
probability a detection puts on the pixels of an object. Here a detection is given by the CDFs
\(F_{x1}, F_{y1}, F_{x2}, F_{y2}\) of its sides, whatever their shape, and the object by its box.

The pixel in column i and row j has its centre at (i + 1/2, j + 1/2). It belongs to the box with

.. math:: P_{ij} = F_{x1}(c_i) (1 - F_{x2}(c_i)) \; F_{y1}(r_j) (1 - F_{y2}(r_j)),

as if the sides were independent, which is how the paper treats the corners of its Gaussian boxes.
With S the pixels of the object's box and V all others of the image,

.. math::
    Q_{fg} = \exp \frac{1}{|S|} \sum_{S} \log P_{ij}, \quad
    Q_{bg} = \exp \frac{1}{|S|} \sum_{V} \log (1 - P_{ij}), \quad
    Q_S = Q_{fg} Q_{bg}, \quad
    Q_L = P(\text{class of the object}), \quad q = \sqrt{Q_S Q_L}.

Detections and objects of an image are assigned one to one so that the sum of q is largest. A pair
of q > 0 is a true positive; what remains is false, and over all images

.. math:: PDQ = \sum q \,/\, (TP + FP + FN).

As in the authors' evaluation code, a logarithm is taken of 1e-14 at least and a spatial quality
below 1e-8 is 0. Unlike there, small probabilities are not rounded to 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..quantile_tables import interpolated
from .bootstrap import Estimate, image_weights

FloatArray = NDArray[np.float64]

FLOOR = 1e-14  # smallest argument of a logarithm
SMALLEST_QUALITY = 1e-8
NEGLIGIBLE = 1e-12  # pixels of a smaller probability add nothing to the background's loss

QUALITIES = ("overall", "spatial", "label", "foreground", "background")
COUNTS = ("tp", "fp", "fn")


@dataclass(frozen=True)
class PixelProbabilities:
    """P(the pixel belongs to the box) of N detections, as a product of two factors.

    Attributes:
        columns: ``(N, W)`` P(x1 <= centre <= x2) of every pixel column.
        rows: ``(N, H)`` P(y1 <= centre <= y2) of every pixel row.
    """

    columns: FloatArray
    rows: FloatArray


def pixel_probabilities(
    levels: ArrayLike, quantiles: ArrayLike, size: tuple[int, int]
) -> PixelProbabilities:
    """From tables of quantiles: linear between the levels, exponential tails beyond.

    Args:
        levels: ``(K,)`` increasing levels in (0, 1), K >= 2.
        quantiles: ``(N, K, 4)`` of x1, y1, x2, y2.
        size: ``(height, width)`` of the image.

    Example:
        >>> box = np.tile([1.0, 0.0, 3.0, 2.0], (1, 2, 1))  # certain
        >>> found = pixel_probabilities([0.4, 0.6], box, (3, 4))
        >>> found.columns.round(3), found.rows.round(3)
        (array([[0., 1., 1., 0.]]), array([[1., 1., 0.]]))
    """
    height, width = size
    table = np.asarray(quantiles, float)
    centres = torch.arange(max(height, width), dtype=torch.float64)[:, None, None] + 0.5
    below = np.zeros((len(table), len(centres), 4))
    for n in range(len(table)):  # one by one: the look-up holds a table per pixel
        below[n] = interpolated(levels, table[n : n + 1]).cdf(centres)[:, 0].numpy()
    return PixelProbabilities(
        columns=below[:, :width, 0] * (1 - below[:, :width, 2]),
        rows=below[:, :height, 1] * (1 - below[:, :height, 3]),
    )


def pixel_range(low: float, high: float, size: int) -> slice:
    """The pixels whose centres lie in [low, high); at least one, the nearest to the middle.

    Example:
        >>> pixel_range(0.6, 3.5, 10), pixel_range(4.1, 4.3, 10), pixel_range(-5, -2, 10)
        (slice(1, 3, None), slice(4, 5, None), slice(0, 1, None))
    """
    first, stop = np.clip(np.ceil([low - 0.5, high - 0.5]), 0, size).astype(int)
    if first >= stop:
        first = int(np.clip(np.floor((low + high) / 2), 0, size - 1))
        stop = first + 1
    return slice(int(first), int(stop))


def spatial_qualities(
    columns: FloatArray, rows: FloatArray, truths: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Foreground and background quality of one detection against M objects, ``(M,)`` each.

    Args:
        columns: ``(W,)`` of :class:`PixelProbabilities`.
        rows: ``(H,)``.
        truths: ``(M, 4)`` xyxy boxes in pixels.
    """
    # Outside this window the probability is too small to matter.
    window = [_support(rows), _support(columns)]
    inside = rows[window[0], None] * columns[None, window[1]]
    log_outside = np.log(np.maximum(1 - inside, FLOOR))
    everywhere = log_outside.sum()
    foreground, background = np.zeros(len(truths)), np.zeros(len(truths))
    for m, (x1, y1, x2, y2) in enumerate(truths):
        area = pixel_range(y1, y2, len(rows)), pixel_range(x1, x2, len(columns))
        own = rows[area[0], None] * columns[None, area[1]]
        foreground[m] = np.exp(np.log(np.maximum(own, FLOOR)).mean())
        covered = tuple(
            slice(max(part.start - seen.start, 0), max(part.stop - seen.start, 0))
            for part, seen in zip(area, window, strict=True)
        )
        others = min(0.0, everywhere - log_outside[covered].sum())
        background[m] = np.exp(others / own.size)
    return foreground, background


def _support(probability: FloatArray) -> slice:
    """From the first to the last entry that is not negligible; empty if all are."""
    index = np.flatnonzero(probability > NEGLIGIBLE)
    return slice(int(index[0]), int(index[-1]) + 1) if len(index) else slice(0, 0)


def pairwise_qualities(
    pixels: PixelProbabilities,
    scores: NDArray,
    labels: NDArray,
    truths: NDArray,
    truth_labels: NDArray,
) -> dict[str, FloatArray]:
    """Every quality of every pair, ``(N, M)`` each, by name as in ``QUALITIES``.

    The label's quality is the score where the classes agree and 0 elsewhere: a detector that
    reports one class gives the others no probability.

    Args:
        pixels: Of N detections.
        scores: ``(N,)`` probabilities of the reported classes.
        labels: ``(N,)``.
        truths: ``(M, 4)`` xyxy boxes.
        truth_labels: ``(M,)``.
    """
    shape = (len(scores), len(truth_labels))
    table = {name: np.zeros(shape) for name in QUALITIES}
    agree = np.asarray(labels)[:, None] == np.asarray(truth_labels)[None]
    table["label"] = np.where(agree, np.asarray(scores, float)[:, None], 0.0)
    for n in range(shape[0]):
        same = np.flatnonzero(agree[n])
        if len(same):
            parts = spatial_qualities(pixels.columns[n], pixels.rows[n], np.asarray(truths)[same])
            table["foreground"][n, same], table["background"][n, same] = parts
    spatial = table["foreground"] * table["background"]
    table["spatial"] = np.where(spatial < SMALLEST_QUALITY, 0.0, spatial)
    table["overall"] = np.sqrt(table["spatial"] * table["label"])
    return table


def judge_image(
    table: dict[str, FloatArray], difficult: NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """Assign detections to objects; sums of the qualities of true positives, and the counts.

    A difficult object may be found and may be missed, neither counts.

    Args:
        table: From :func:`pairwise_qualities`.
        difficult: ``(M,)``.

    Example:
        >>> one_of_two = {name: np.array([[0.8], [0.5]]) for name in QUALITIES}
        >>> found = judge_image(one_of_two)
        >>> [found[name] for name in ("overall", "tp", "fp", "fn")]
        [0.8, 1.0, 1.0, 0.0]
    """
    from scipy.optimize import linear_sum_assignment

    n, m = table["overall"].shape
    hard = np.zeros(m, bool) if difficult is None else np.asarray(difficult, bool)
    detection, truth = linear_sum_assignment(table["overall"], maximize=True)
    found = table["overall"][detection, truth] > 0
    counted = found & ~hard[truth]
    pairs = detection[counted], truth[counted]
    record = {name: float(table[name][pairs].sum()) for name in QUALITIES}
    hits = float(counted.sum())
    record.update(tp=hits, fp=float(n - found.sum()), fn=float((~hard).sum() - hits))
    return record


def total_quality(
    records: list[dict[str, float]], replicates: int = 0, seed: int = 0
) -> dict[str, Estimate]:
    """PDQ, mean qualities and counts of many images, with 95 % bootstrap intervals over images.

    Args:
        records: One of :func:`judge_image` per image.
        replicates: Bootstrap replicates; 0 for none.
        seed: Seed of the bootstrap.

    Returns:
        ``pdq``; ``pairwise`` (mean of q), ``spatial``, ``label``, ``foreground`` and
        ``background``, means over true positives; ``tp``, ``fp``, ``fn``. NaN where there is
        nothing to average.
    """
    names = (*QUALITIES, *COUNTS)
    columns = np.array([[record[name] for name in names] for record in records]).reshape(
        -1, len(names)
    )
    weights = image_weights(len(records), replicates, seed)
    sums = dict(zip(names, (weights @ columns).T, strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = {"pdq": sums["overall"] / (sums["tp"] + sums["fp"] + sums["fn"])}
        values["pairwise"] = sums["overall"] / sums["tp"]
        values.update({name: sums[name] / sums["tp"] for name in QUALITIES[1:]})
    estimates = {name: Estimate.from_replicates(value) for name, value in values.items()}
    return {**estimates, **{name: Estimate(float(sums[name][0])) for name in COUNTS}}
