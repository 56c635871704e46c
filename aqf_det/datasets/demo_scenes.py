"""A generated VOC-format data set in which the true distribution of hidden box sides is known.

Scenes show plates with real handwritten digits. Some plates run behind a wooden board: the hidden
end lies ``extent * B`` behind the board's edge, where the law of B depends on the digit only
(:data:`CLASS_LAWS`) and B never touches a pixel: the image is painted before B is drawn.
Visible sides are sharp. A detector that assigns an object to the grid cell of its centre must not
learn B from the cell, so positions are such that the cell of the centre is the same for every
possible B.

Run ``python -m aqf_det.datasets.demo_scenes OUTPUT_DIR`` to write one.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from .demo_rendering import Plate, Rect, finish, paint_background, paint_board, paint_plate
from .hidden_side import SIDES, ExtensionLaw

# (weight, a, c) of Kumaraswamy components: mostly short with a long tail; short or long with
# nothing between, in two proportions.
CLASS_LAWS: dict[str, ExtensionLaw] = {
    "digit_0": ExtensionLaw(((1.0, 0.8, 2.2),)),
    "digit_4": ExtensionLaw(((0.7, 2.0, 60.0), (0.3, 16.0, 3.0))),
    "digit_7": ExtensionLaw(((0.35, 2.0, 60.0), (0.65, 16.0, 3.0))),
}
# Colours of the plates (BGR shifts): a small network must tell the classes apart within minutes.
CLASS_TINTS = {
    "digit_0": (-30.0, -25.0, 40.0),
    "digit_4": (40.0, 0.0, -50.0),
    "digit_7": (-50.0, 30.0, -40.0),
}
CLASSES = tuple(CLASS_LAWS)
PALETTE = [(255, 111, 97), (46, 196, 255), (124, 220, 80)]
GRID = 16  # pixels; the stride of the detector's level for objects of this size
EXTENT = 0.6  # largest hidden extension relative to the plate's breadth
BREADTH = (34.0, 46.0)
HIDDEN_SHARE = 0.7
FORMAT_VERSION = 2


@dataclass(frozen=True)
class SceneObject:
    """An object of a scene: the visible layout, and how far it extends behind its board if it has
    one.

    Attributes:
        label: Class name.
        side: The side at the end of the plate, one of ``SIDES``.
        start: Coordinate of the opposite, always visible, side along the plate's axis.
        edge: Where the board begins (hidden) or the extension of the plate begins (visible).
        across: The two sides along the other axis.
        extent: Largest extension in pixels.
        share: Extension divided by ``extent``.
        hidden: Whether a board covers the end.
    """

    label: str
    side: str
    start: float
    edge: float
    across: tuple[float, float]
    extent: float
    share: float
    hidden: bool

    @property
    def direction(self) -> int:
        """+1 where the plate extends towards larger coordinates."""
        return 1 if self.side in ("right", "bottom") else -1

    def rect(self, share: float) -> Rect:
        """The box of the plate when it extends ``share * extent`` behind the edge."""
        return self._rect(self.start, self.edge + self.direction * self.extent * share)

    def board(self, margin: float) -> Rect:
        """The board: ``margin`` pixels larger than the part it must hide."""
        low, high = self.across
        wide = replace(self, across=(low - margin, high + margin))
        return wide._rect(self.edge, self.edge + self.direction * (self.extent + margin))

    def _rect(self, one: float, other: float) -> Rect:
        low, high = sorted((one, other))
        if self.side in ("left", "right"):
            return low, self.across[0], high, self.across[1]
        return self.across[0], low, self.across[1], high


def _propose(rng: np.random.Generator, size: int) -> SceneObject | None:
    """A random object, or None where it would not fit into the picture."""
    label = CLASSES[rng.integers(len(CLASSES))]
    side = SIDES[rng.integers(4)]
    breadth = rng.uniform(*BREADTH)
    extent = EXTENT * breadth
    hidden = bool(rng.random() < HIDDEN_SHARE)
    share = 0.0 if hidden else CLASS_LAWS[label].sample(rng)
    low = rng.uniform(2, size - 2 - breadth)
    across = (low, low + breadth)
    length = breadth * rng.uniform(0.9, 1.1)
    while True:
        start = rng.uniform(2, size - 2)
        edge = start + length if side in ("right", "bottom") else start - length
        item = SceneObject(label, side, start, edge, across, extent, share, hidden)
        if not hidden or _centre_cell(item.rect(0.0)) == _centre_cell(item.rect(1.0)):
            break
    reach = item.rect(1.0)
    return item if min(reach) >= 2 and max(reach) <= size - 2 else None


def _centre_cell(rect: Rect) -> tuple[int, int]:
    return int((rect[0] + rect[2]) / 2 // GRID), int((rect[1] + rect[3]) / 2 // GRID)


def _overlap(first: Rect, second: Rect) -> bool:
    wide = min(first[2], second[2]) > max(first[0], second[0])
    high = min(first[3], second[3]) > max(first[1], second[1])
    return wide and high


def _union(first: Rect, second: Rect) -> Rect:
    return (
        min(first[0], second[0]),
        min(first[1], second[1]),
        max(first[2], second[2]),
        max(first[3], second[3]),
    )


def lay_out(
    rng: np.random.Generator, size: int, max_objects: int
) -> list[tuple[SceneObject, Rect | None]]:
    """Place 1 ... ``max_objects`` objects, each with its board if hidden, without overlap."""
    wanted = int(rng.integers(1, max_objects + 1))
    placed: list[tuple[SceneObject, Rect | None]] = []
    taken: list[Rect] = []
    tries = 0
    while not placed or (len(placed) < wanted and tries < 400):
        tries += 1
        item = _propose(rng, size)
        if item is None:
            continue
        board = item.board(rng.uniform(4, 9)) if item.hidden else None
        needed = item.rect(1.0) if board is None else _union(item.rect(1.0), board)
        grown = (needed[0] - 3, needed[1] - 3, needed[2] + 3, needed[3] + 3)
        if any(_overlap(grown, other) for other in taken):
            continue
        placed.append((item, board))
        taken.append(needed)
    return placed


def paint_scene(
    rng: np.random.Generator,
    size: int,
    layout: list[tuple[SceneObject, Rect | None]],
    digits: dict[str, NDArray[np.float32]],
) -> NDArray[np.uint8]:
    """Paint a laid-out scene, ``(size, size, 3)`` BGR. Hidden extensions are not an input."""
    canvas = paint_background(rng, size)
    for item, _ in layout:
        images = digits[item.label]
        square = item.rect(0.0)
        inset = 0.14 * min(square[2] - square[0], square[3] - square[1])
        digit_rect = (square[0] + inset, square[1] + inset, square[2] - inset, square[3] - inset)
        plate = Plate(
            rect=item.rect(1.0 if item.hidden else item.share),
            digit_rect=digit_rect,
            digit=images[rng.integers(len(images))],
            tint=CLASS_TINTS[item.label],
            seed=int(rng.integers(2**31)),
        )
        paint_plate(canvas, plate)
    for _, board in layout:
        if board is not None:
            paint_board(canvas, board, seed=int(rng.integers(2**31)))
    return finish(canvas, rng)


def _element(parent: ET.Element, tag: str, text: object = None, **attributes: object) -> ET.Element:
    child = ET.SubElement(parent, tag, {key: str(value) for key, value in attributes.items()})
    child.text = None if text is None else str(text)
    return child


def _annotation(name: str, size: int, objects: list[SceneObject]) -> ET.ElementTree:
    """The VOC annotation; coordinates are 1-based as in VOC and keep two decimals."""
    root = ET.Element("annotation")
    _element(root, "folder", "demo_scenes")
    _element(root, "filename", f"{name}.jpg")
    shape = _element(root, "size")
    for key, value in (("width", size), ("height", size), ("depth", 3)):
        _element(shape, key, value)
    for item in objects:
        node = _element(root, "object")
        _element(node, "name", item.label)
        _element(node, "truncated", 0)
        _element(node, "difficult", 0)
        box = _element(node, "bndbox")
        corners = zip(("xmin", "ymin", "xmax", "ymax"), item.rect(item.share), strict=True)
        for key, position in corners:
            _element(box, key, f"{position + 1:.2f}")
        _element(node, "occluded_side", item.side if item.hidden else "none")
        if item.hidden:
            truth = _element(node, "hidden_truth")
            _element(truth, "edge", f"{item.edge + 1:.4f}")
            _element(truth, "extent", f"{item.extent:.4f}")
            for weight, a, c in CLASS_LAWS[item.label].components:
                _element(truth, "component", weight=weight, a=a, c=c)
    ET.indent(root)
    return ET.ElementTree(root)


@functools.cache
def _digits_of_split(split: int) -> dict[str, NDArray[np.float32]]:
    """Handwritten digits by class: 3/5 for training, 1/5 each for validation and test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    turn = np.arange(len(data.target)) % 5
    chosen = (turn < 3) if split == 0 else (turn == split + 2)
    return {
        name: (data.images[chosen & (data.target == int(name[-1]))] / 16).astype(np.float32)
        for name in CLASSES
    }


def make_scene(
    size: int, split: int, index: int, seed: int, digits: dict[str, NDArray[np.float32]]
) -> tuple[NDArray[np.uint8], list[SceneObject]]:
    """One scene: paint what is visible, and only then draw how far hidden plates extend."""
    rng = np.random.default_rng([seed, split, index])
    layout = lay_out(rng, size, max_objects=3 if size < 192 else 4)
    image = paint_scene(rng, size, layout, digits)
    hidden_rng = np.random.default_rng([seed, split, index, 1])
    objects = []
    for item, _ in layout:
        if item.hidden:
            item = replace(item, share=CLASS_LAWS[item.label].sample(hidden_rng))
        objects.append(item)
    return image, objects


def _existing_parameters(root: Path) -> dict | None:
    record = root / "dataset.json"
    if record.is_file():
        loaded: dict = json.loads(record.read_text())
        return loaded
    if root.exists() and any(root.iterdir()):
        raise FileExistsError(
            f"{root} holds files that are no demo data set; choose another directory."
        )
    return None


def generate_demo_dataset(
    root: str | Path,
    n_train: int = 800,
    n_val: int = 100,
    n_test: int = 300,
    image_size: int = 160,
    seed: int = 0,
    report: Callable[[float], None] | None = None,
) -> Path:
    """Write the data set as a VOC tree (JPEGImages, Annotations, ImageSets/Main); deterministic by
    seed.

    Nothing is written when ``root`` already holds the data set of these parameters, and a data set
    of other parameters is replaced only once the new one is complete.

    Args:
        root: Directory of the data set.
        n_train: Training images.
        n_val: Validation images.
        n_test: Test images.
        image_size: Side of the square images, a multiple of 32 from 128 on.
        seed: Seed of everything random.
        report: Called with the finished share after every image.

    Returns:
        ``root`` as a path.
    """
    root = Path(root)
    counts = {"train": n_train, "val": n_val, "test": n_test}
    if image_size < 128 or image_size % 32:
        raise ValueError(f"image_size must be a multiple of 32 from 128 on, got {image_size}.")
    if min(counts.values()) < 0 or sum(counts.values()) == 0:
        raise ValueError(f"image counts must be non-negative and not all 0, got {counts}.")
    parameters = {"format": FORMAT_VERSION, **counts, "image_size": image_size, "seed": seed}
    if _existing_parameters(root) == parameters:
        return root
    partial = root.with_name(root.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (partial / name).mkdir(parents=True)
    written = 0
    for split, (split_name, count) in enumerate(counts.items()):
        names = []
        for name in _write_split(partial, split, split_name, count, image_size, seed):
            names.append(name)
            written += 1
            if report is not None:
                report(written / sum(counts.values()))
        listing = "".join(f"{name}\n" for name in names)
        (partial / "ImageSets/Main" / f"{split_name}.txt").write_text(listing)
    (partial / "dataset.json").write_text(json.dumps(parameters, indent=2) + "\n")
    shutil.rmtree(root, ignore_errors=True)
    partial.rename(root)
    return root


def _write_split(
    root: Path, split: int, split_name: str, count: int, size: int, seed: int
) -> Iterator[str]:
    digits = _digits_of_split(split)
    for index in range(count):
        name = f"{split_name}_{index:05d}"
        image, objects = make_scene(size, split, index, seed, digits)
        path = root / "JPEGImages" / f"{name}.jpg"
        if not cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, 92]):
            raise OSError(f"cannot write {path}.")
        _annotation(name, size, objects).write(root / "Annotations" / f"{name}.xml")
        yield name


def main() -> None:
    """Command line: write a demo data set."""
    parser = argparse.ArgumentParser(description="Write the generated demo data set (VOC format).")
    parser.add_argument("root", type=Path)
    for name, default in (("n-train", 800), ("n-val", 100), ("n-test", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    print(generate_demo_dataset(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
