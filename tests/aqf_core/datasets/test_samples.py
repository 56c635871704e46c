"""Data of generative experiments: preparation from raw files, and what is wrong with others."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from aqf_core.datasets import (
    DataError,
    load_density,
    load_digit_images,
    load_mnist,
    read_numbers,
)
from aqf_core.datasets import images as images_module


@pytest.fixture
def density(tmp_path: Path) -> Path:
    (tmp_path / "density").mkdir()
    return tmp_path / "density"


def power_file(folder: Path, separator: str, name: str) -> None:
    names = "Date,Time,Global_active_power,Global_reactive_power,Voltage,Global_intensity"
    names += ",Sub_metering_1,Sub_metering_2,Sub_metering_3"
    rng = np.random.default_rng(0)
    rows = [names]
    for k in range(200):
        power, voltage = rng.uniform(0, 6), rng.uniform(230, 250)
        meters = rng.integers(0, 20, 3)
        cells = ["1/1/2007", f"{k // 60:02}:{k % 60:02}:00", f"{power:.3f}", "0.1"]
        cells += [f"{voltage:.2f}", "4.6", *map(str, meters)]
        rows.append(",".join(cells if k != 7 else [*cells[:2], *["?"] * 7]))
    (folder / name).write_text("\n".join(rows).replace(",", separator))


@pytest.mark.parametrize(
    ("name", "separator"),
    [("household_power_consumption.txt", ";"), ("power_household_minute.csv.xz", ",")],
)
def test_power_is_prepared_as_usual(density: Path, name: str, separator: str) -> None:
    plain = density / name.removesuffix(".xz")
    power_file(density, separator, plain.name)
    if name.endswith(".xz"):
        import lzma

        (density / name).write_bytes(lzma.compress(plain.read_bytes()))
        plain.unlink()
    data = load_density("power", density.parent)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [161, 19, 19]
    assert data.shape == (6,) and data.columns[-1] == "minute"
    used = np.concatenate([data.train, data.validation])
    np.testing.assert_allclose(used.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(used.std(0), 1, atol=1e-4)
    restored = data.original(np.concatenate([used, data.test]))
    assert len(np.unique(restored[:, 2])) == 199  # whole watt-hours got their noise
    np.testing.assert_allclose(restored[:, -1] % 1, np.round(restored[:, -1] % 1), atol=2e-3)


def test_gas_keeps_one_of_two_columns_that_are_alike(density: Path) -> None:
    rng = np.random.default_rng(0)
    sensors = rng.normal(size=(100, 15))
    table = np.column_stack([np.arange(100), np.zeros((100, 2)), sensors, sensors[:, 0] * 2])
    np.savetxt(density / "ethylene_CO.txt", table, header="Time CO Ethylene sensors", comments="")
    data = load_density("gas", density.parent)
    assert data.columns == tuple(f"sensor {k}" for k in range(2, 17))


def test_hepmass_keeps_signal_and_varied_columns(density: Path) -> None:
    rng = np.random.default_rng(0)
    for kind, rows in (("train", 120), ("test", 60)):
        table = rng.normal(size=(rows, 29))
        table[:, 0] = np.arange(rows) % 2
        table[:, 5] = np.round(table[:, 5])  # values that occur often
        header = ",".join(["label", *(f"f{k}" for k in range(27)), "mass"])
        np.savetxt(density / f"1000_{kind}.csv", table, delimiter=",", header=header)
    data = load_density("hepmass", density.parent)
    assert data.features == 26
    assert (len(data.train), len(data.validation), len(data.test)) == (54, 6, 30)
    (density / "1000_test.csv").unlink()
    with pytest.raises(DataError, match=r"hepmass also needs .*1000_test\.csv"):
        load_density("hepmass", density.parent)


def test_part_of_miniboone_says_so(density: Path) -> None:
    np.save(density / "miniboone_head_1523.npy", np.random.default_rng(0).normal(size=(80, 43)))
    data = load_density("miniboone", density.parent)
    assert data.features == 43
    assert data.remark == "the first 80 of 36,488 rows only"
    np.save(density / "miniboone.npy", np.zeros((80, 50)))
    with pytest.raises(DataError, match=r"has 50 columns, the miniboone data have 43.*https://"):
        load_density("miniboone", density.parent)


def photographs(folder: Path, side: int = 40) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for kind in ("train", "val"):
        (folder / kind).mkdir(parents=True)
        for k in range(3):
            smooth = rng.uniform(0, 255, (5, 5)).astype(np.uint8)
            image = Image.fromarray(smooth).resize((side, side))
            image.save(folder / kind / f"{k}.jpg")


def test_patches_have_no_mean_and_no_last_pixel(
    density: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aqf_core.datasets import density as module

    monkeypatch.setattr(module, "PATCHES", {"train": 500, "validation": 50, "test": 60})
    photographs(density / "bsds300")
    data = load_density("bsds300", density.parent)
    assert data.train.shape == (500, 63) and data.test.shape == (60, 63)
    assert data.remark == "6 of 300 photographs"
    # The pixel that is left out is minus the sum of the others: it is as small as they are.
    assert np.abs(data.train.sum(1)).max() < 1
    neighbours = np.corrcoef(data.train[:, 0], data.train[:, 1])[0, 1]
    assert neighbours > 0.8


def test_photographs_must_hold_a_patch(density: Path) -> None:
    photographs(density / "bsds300", side=7)
    with pytest.raises(DataError, match=r"is 7x7; patches are 8x8"):
        load_density("bsds300", density.parent)
    with pytest.raises(DataError, match="holds no photographs"):
        (density / "bsds300/val/0.jpg").unlink()
        (density / "bsds300/val/1.jpg").unlink()
        load_density("bsds300", density.parent)


@pytest.mark.parametrize("name", ["power", "gas", "hepmass", "miniboone", "bsds300"])
def test_missing_files_are_named_with_their_source(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{name} is read from {tmp_path}/density/.*https://"):
        load_density(name, tmp_path)


def test_other_columns_than_power_are_named(density: Path) -> None:
    lines = ["Date;Time;Voltage", *["1;00:00:00;2"] * 60]
    (density / "household_power_consumption.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match="no column 'Global_active_power'"):
        load_density("power", density.parent)


def test_digits_splits_do_not_overlap() -> None:
    data = load_digit_images(3)
    rows = np.concatenate([data.train, data.validation, data.test])
    assert rows.shape == (1797, 64) and rows.min() == 0 and rows.max() == 16
    assert len(np.unique(rows, axis=0)) == 1797
    assert data.fingerprint != load_digit_images(4).fingerprint
    assert data.labels is not None and len(data.labels[2]) == len(data.test)


def idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_idx_files_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 256, (60, 28, 28))
    idx(folder / "train-images-idx3-ubyte.gz", digits)
    np.testing.assert_array_equal(
        images_module.read_idx(folder / "train-images-idx3-ubyte.gz"), digits
    )
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz, which does not .*https://"):
        load_mnist(tmp_path)
    idx(folder / "train-labels-idx1-ubyte.gz", rng.integers(0, 10, 60))
    with pytest.raises(DataError, match="MNIST has 60000 images of 28x28"):
        load_mnist(tmp_path)
    idx(folder / "train-images-idx3-ubyte.gz", rng.integers(0, 256, (60, 20, 20)))
    with pytest.raises(DataError, match=r"images \(60, 20, 20\)"):
        load_mnist(tmp_path)
    with pytest.raises(DataError, match="side of 28 pixels, or 14"):
        load_mnist(tmp_path, side=10)
    cut = (folder / "train-images-idx3-ubyte.gz").read_bytes()[:-20]
    (folder / "train-images-idx3-ubyte.gz").write_bytes(cut)
    with pytest.raises(DataError, match="no complete gzip file"):
        load_mnist(tmp_path)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match="no idx file"):
        load_mnist(tmp_path)


def test_halved_images_are_means_of_four_pixels() -> None:
    image = np.zeros((1, 28, 28), dtype=np.uint8)
    image[0, :2, :2] = [[10, 20], [30, 41]]
    assert images_module._shrunk(image, 14)[0, 0] == 25  # 25.25 rounded


def csv(path: Path, cells: list[str], header: str = "a,b") -> Path:
    path.write_text("\n".join([header, *cells]))
    return path


def test_tables_of_numbers_are_standardised(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(5, [1, 30], (100, 2))
    data = read_numbers(csv(tmp_path / "t.csv", [f"{a};{b}" for a, b in rows], "a;b"), seed=1)
    assert data.name == "t" and len(data.train) == 80
    np.testing.assert_allclose(data.train.std(0), 1, atol=1e-5)
    every = np.concatenate([data.train, data.validation, data.test])
    back = data.original(every)
    np.testing.assert_allclose(np.sort(back[:, 1]), np.sort(rows[:, 1]), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([f"{k},x" for k in range(60)], r"column 'b' of .* holds 'x', which is no number"),
        ([f"{k}," for k in range(60)], r"column 'b' of .* has 60 cells that are empty"),
        ([f"{k},inf" for k in range(60)], r"column 'b' of .* empty or infinite"),
        ([f"{k},3" for k in range(60)], r"column 'b' of .* is 3 in every row; drop it"),
        ([f"{k},{k}" for k in range(20)], r"has 20 rows; splitting it into three parts needs 50"),
        ([f"{k},{k},{k}" for k in range(60)], r"names 2 columns, but its rows have 3"),
        ([], "has a header but no rows"),
        ([f"{k},{k}" for k in range(30)] + ["1,2,3"], r"is no regular table"),
    ],
)
def test_unusable_tables_are_explained(cells: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_numbers(csv(tmp_path / "t.csv", cells))
