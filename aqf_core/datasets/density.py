r"""The data of density estimation, prepared from raw files as for masked autoregressive flows.

    power       6   household electricity by the minute: no reactive power and intensity, time in
                    minutes, noise of one step of each meter
    gas         8   gas sensors: no time and concentrations, one of columns with correlation > .98
    hepmass    21   particle collisions: signal rows, no column in which a value occurs more than
                    five times
    miniboone  43   particle identification: the published array as it is
    bsds300    63   grey patches 8x8 of photographs: noise of one grey level, mean of the patch
                    subtracted, last pixel left out

All but bsds300 are in units of standard deviations. The recipe is that of Papamakarios et al.
(2017), https://arxiv.org/abs/1705.07057.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..validation import lookup
from .samples import Samples, check_rows, split_rows, standardised
from .table import DataError
from .uci import data_root

__all__ = ["DENSITY", "load_density"]

ARCHIVE = "https://archive.ics.uci.edu/dataset"
PUBLISHED = "https://zenodo.org/records/1161203 (data.tar.gz)"
SEED = 42
# Patches of 8x8 per part: 90 and 10 % of the training photographs, and the photographs in val.
PATCHES = {"train": 200_000, "validation": 10_000, "test": 20_000}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """Where a data set is and how it is read.

    Attributes:
        files: what may stand in the folder `density`; the first that exists is read.
        origin: where to get it.
        read: path -> the three parts.
    """

    files: tuple[str, ...]
    origin: str
    read: Callable[[Path], Samples]


def _power(path: Path) -> Samples:
    import pandas as pd

    separator = "," if ".csv" in path.name else ";"
    frame = pd.read_csv(path, sep=separator, na_values="?", low_memory=False).dropna()
    wanted = ["Global_active_power", "Voltage", "Sub_metering_1", "Sub_metering_2"]
    wanted += ["Sub_metering_3"]
    missing = [name for name in ["Time", *wanted] if name not in frame.columns]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; get the file from {ARCHIVE}/235.")
    codes, times = pd.factorize(frame["Time"])  # a day has few minutes
    clock = np.array([[float(part) for part in time.split(":")[:2]] for time in times])
    minute = (clock @ [60.0, 1.0])[codes]
    rows = np.column_stack([frame[wanted].to_numpy(np.float64), minute])
    steps = np.array([0.001, 0.01, 1.0, 1.0, 1.0, 0.0])
    rows += steps * np.random.default_rng(SEED).random(rows.shape)
    columns = (*(name.lower() for name in wanted), "minute")
    return _in_deviations("power", rows, columns, path)


def _gas(path: Path) -> Samples:
    import pandas as pd

    frame = pd.read_csv(path, sep=r"\s+", skiprows=1, header=None)
    _check_columns(path, frame.shape[1], (19,), "gas")
    frame = frame.iloc[:, 3:]
    while True:  # as published: drop the first column that resembles another
        alike = (frame.corr().to_numpy() > 0.98).sum(0)
        if (alike <= 1).all():
            break
        frame = frame.drop(columns=frame.columns[int(np.flatnonzero(alike > 1)[0])])
    columns = tuple(f"sensor {k - 2}" for k in frame.columns)
    return _in_deviations("gas", frame.to_numpy(np.float64), columns, path)


def _hepmass(path: Path) -> Samples:
    import pandas as pd

    parts = []
    for kind in ("train", "test"):
        file = path.with_name(path.name.replace("train", kind))
        if not file.is_file():
            raise DataError(f"hepmass also needs {file}; get it from {ARCHIVE}/347.")
        frame = pd.read_csv(file, header=None, skiprows=1)
        _check_columns(file, frame.shape[1], (28, 29), "hepmass")
        # The label comes first; one of the files also has the mass, last.
        parts.append(frame[frame[0] == 1].iloc[:, 1:28].to_numpy(np.float64))
    train, test = parts
    often = [np.unique(column, return_counts=True)[1].max() for column in train.T]
    keep = np.flatnonzero(np.array(often) <= 5)
    rows = np.concatenate([train, test])[:, keep]
    order = np.random.default_rng(SEED).permutation(len(train))
    held = len(train) // 10
    indices = (order[held:], order[:held], len(train) + np.arange(len(test)))
    columns = tuple(f"feature {k}" for k in keep)
    check_rows(rows, columns, path)
    return standardised("hepmass", rows, indices, columns, np.arange(len(train)))


def _miniboone(path: Path) -> Samples:
    rows = np.load(path, allow_pickle=False).astype(np.float64)
    _check_columns(path, rows.shape[-1], (43,), "miniboone")
    remark = "" if len(rows) == 36_488 else f"the first {len(rows):,} of 36,488 rows only"
    columns = tuple(f"particle {k + 1}" for k in range(43))
    return _in_deviations("miniboone", rows, columns, path, remark)


def _bsds300(folder: Path) -> Samples:
    photographs = {kind: sorted((folder / kind).glob("*.jpg")) for kind in ("train", "val")}
    few = [kind for kind, files in photographs.items() if len(files) < 2]
    if few:
        raise DataError(f"{folder / few[0]} holds no photographs (*.jpg); get them from {_BSDS}.")
    train = photographs["train"]
    held = max(1, len(train) // 10)
    files = {"train": train[held:], "validation": train[:held], "test": photographs["val"]}
    rng = np.random.default_rng(SEED)
    parts = {kind: _patches(files[kind], PATCHES[kind], rng) for kind in files}
    total = sum(map(len, photographs.values()))
    return Samples(
        "bsds300",
        parts["train"],
        parts["validation"],
        parts["test"],
        (63,),
        tuple(f"pixel {k}" for k in range(63)),
        remark="" if total == 300 else f"{total} of 300 photographs",
    )


def _patches(files: list[Path], count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Random 8x8 patches in [0, 1] less their mean, without the last pixel: (about count, 63)."""
    from PIL import Image

    each = -(-count // len(files))
    patches = []
    for file in files:
        grey = np.asarray(Image.open(file).convert("L"), dtype=np.float64)
        if min(grey.shape) < 8:
            raise DataError(f"{file} is {grey.shape[1]}x{grey.shape[0]}; patches are 8x8.")
        windows = np.lib.stride_tricks.sliding_window_view(grey, (8, 8))
        rows = rng.integers(windows.shape[0], size=each)
        columns = rng.integers(windows.shape[1], size=each)
        patches.append(windows[rows, columns].reshape(each, 64))
    values = np.concatenate(patches)
    values = (values + rng.random(values.shape)) / 256
    values -= values.mean(1, keepdims=True)
    return values[rng.permutation(len(values))[:count], :63].astype(np.float32)


def _check_columns(path: Path, found: int, expected: tuple[int, ...], name: str) -> None:
    if found not in expected:
        wanted = " or ".join(map(str, expected))
        raise DataError(
            f"{path} has {found} columns, the {name} data have {wanted}; get the file from "
            f"{DENSITY[name].origin}."
        )


def _in_deviations(
    name: str, rows: Array, columns: tuple[str, ...], path: Path, remark: str = ""
) -> Samples:
    check_rows(rows, columns, path)
    parts = split_rows(rows, SEED)
    return standardised(name, rows, parts, columns, np.concatenate(parts[:2]), remark)


_BSDS = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/bsds"

DENSITY: dict[str, Source] = {
    "power": Source(
        ("household_power_consumption.txt", "power_household_minute.csv.xz"),
        f"{ARCHIVE}/235",
        _power,
    ),
    "gas": Source(("ethylene_CO.txt",), f"{ARCHIVE}/322", _gas),
    "hepmass": Source(("1000_train.csv.gz", "1000_train.csv"), f"{ARCHIVE}/347", _hepmass),
    "miniboone": Source(
        ("miniboone.npy", "miniboone_head_1523.npy"),
        f"{PUBLISHED}, where it is miniboone/data.npy",
        _miniboone,
    ),
    "bsds300": Source(("bsds300",), _BSDS, _bsds300),
}


def load_density(name: str, root: str | Path | None = None) -> Samples:
    """Read and prepare one of the data sets `DENSITY`.

    Args:
        name: "power", "gas", "hepmass", "miniboone" or "bsds300".
        root: folder that holds `density`, see `data_root`.

    Raises:
        DataError: if the file is missing or not what it should be.

    Example:
        >>> load_density("gas", "/nowhere")
        Traceback (most recent call last):
        ...
        aqf_core.datasets.table.DataError: gas is read from /nowhere/density/ethylene_CO.txt, ...
    """
    source = lookup(name, DENSITY, "data set")
    folder = data_root(root) / "density"
    for file in source.files:
        if (folder / file).exists():
            try:
                return source.read(folder / file)
            except (ValueError, KeyError, UnicodeDecodeError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(
                    f"{folder / file} cannot be read as the {name} data: {error}."
                ) from None
    raise DataError(
        f"{name} is read from {folder / source.files[0]}, which does not exist; get it from "
        f"{source.origin}, or say where the data are with --data-root or AQF_DATA."
    )
