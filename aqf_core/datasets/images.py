"""Images of handwritten digits: 8x8 from scikit-learn, 28x28 from the files of MNIST."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .samples import Samples, split_rows
from .table import DataError
from .uci import data_root

__all__ = ["load_digit_images", "load_mnist", "read_idx"]

MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist"
HELD_MNIST = 5000


def load_digit_images(seed: int = 0) -> Samples:
    """The 1,797 digits of scikit-learn, 8x8 with 17 grey levels; a fifth is the test part.

    Args:
        seed: of the split; a twentieth is the validation part.

    Example:
        >>> digits = load_digit_images()
        >>> digits.train.shape, digits.test.shape, digits.shape, digits.grey
        ((1349, 64), (359, 64), (1, 8, 8), 17)
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = data.data.astype(np.float32), data.target.astype(np.int64)
    parts = split_rows(images, seed, validation=0.05, test=0.2)
    train, validation, test = (images[part] for part in parts)
    classes = (labels[parts[0]], labels[parts[1]], labels[parts[2]])
    return Samples("digits", train, validation, test, (1, 8, 8), grey=17, labels=classes)


def load_mnist(root: str | Path | None = None, side: int = 28) -> Samples:
    """MNIST: 55,000 images to learn from, 5,000 for validation, 10,000 to test.

    Args:
        root: folder that holds `mnist` with the four idx.gz files, see `data_root`.
        side: 28, or 14 for means over squares of four pixels, rounded; both have 256 grey levels.

    Raises:
        DataError: if a file is missing or holds something else.

    Example:
        >>> load_mnist("/nowhere")
        Traceback (most recent call last):
        ...
        aqf_core.datasets.table.DataError: MNIST is read from /nowhere/mnist/train-images-idx3-...
    """
    if side not in (28, 14):
        raise DataError(f"MNIST has a side of 28 pixels, or 14 when halved; got {side}.")
    folder = data_root(root) / "mnist"
    parts = []
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        images = read_idx(_mnist_file(folder, f"{name}-images-idx3-ubyte.gz"))
        labels = read_idx(_mnist_file(folder, f"{name}-labels-idx1-ubyte.gz"))
        if images.shape != (count, 28, 28) or labels.shape != (count,):
            raise DataError(
                f"the {name} files in {folder} hold images {images.shape} and labels "
                f"{labels.shape}; MNIST has {count} images of 28x28. Download them from {MNIST}."
            )
        parts.append((_shrunk(images, side), labels.astype(np.int64)))
    (train, classes), (test, test_classes) = parts
    return Samples(
        f"mnist{side}" if side != 28 else "mnist",
        train[:-HELD_MNIST],
        train[-HELD_MNIST:],
        test,
        (1, side, side),
        grey=256,
        unit=256.0,
        labels=(classes[:-HELD_MNIST], classes[-HELD_MNIST:], test_classes),
    )


def _mnist_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise DataError(
            f"MNIST is read from {path}, which does not exist; download it from {MNIST}, or say "
            "where the data are with --data-root or AQF_DATA."
        )
    return path


def _shrunk(images: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    values = images.astype(np.float32)
    if side != images.shape[1]:
        factor = images.shape[1] // side
        values = values.reshape(len(images), side, factor, side, factor).mean((2, 4)).round()
    return values.reshape(len(images), -1)


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """The array of bytes in a file of the idx format, compressed by gzip.

    The header is two zero bytes, the type (8: unsigned bytes), the number of dimensions, and each
    dimension as four bytes, the highest first.

    Raises:
        DataError: if the file is none, or shorter than it says.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"{path} is no complete gzip file: {error}; download it again.") from None
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is no idx file of bytes; download it again.")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist())
    values = np.frombuffer(content[start:], dtype=np.uint8)
    if len(values) != int(np.prod(shape)):
        raise DataError(f"{path} holds {len(values)} bytes of {shape}; download it again.")
    return values.reshape(shape)
