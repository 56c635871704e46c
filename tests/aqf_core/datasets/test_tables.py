"""Tables from files: what is read, and what is refused in one sentence."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from aqf_core.datasets import BUNDLED, UCI, DataError, available, data_root, load_bundled, load_uci
from aqf_core.datasets.spreadsheet import read_sheet
from aqf_core.datasets.table import read_csv

GOOD = "size,town,price\n1.5,Ulm,10\n2.5,Bonn,20\n,Ulm,30\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "houses.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_keeps_gaps_and_categories(tmp_path: Path, separator: str) -> None:
    table = read_csv(write(tmp_path, GOOD.replace(",", separator)), ["price"])
    assert (table.name, table.task, list(table.X.columns)) == (
        "houses",
        "regression",
        ["size", "town"],
    )
    assert table.y.tolist() == [10, 20, 30]
    assert str(table.X["town"].dtype) == "category"
    assert np.isnan(table.X["size"].iloc[2])


def test_csv_with_byte_order_mark_and_spaces(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path, "\ufeff price , size\n1, 2\n3, 4\n5, 6\n"), ["price"])
    assert table.y.tolist() == [1, 3, 5]
    assert table.X["size"].tolist() == [2, 4, 6]


def test_two_values_are_classes_unless_said_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,label\n1,2,yes\n2,3,no\n3,4,yes\n")
    table = read_csv(path, ["label"])
    assert (table.task, table.classes, table.y.tolist()) == (
        "classification",
        ("no", "yes"),
        [1, 0, 1],
    )
    numbers = write(tmp_path, "a,b\n1,0\n2,1\n3,1\n")
    assert read_csv(numbers, ["b"], "regression").task == "regression"


def test_several_targets_are_joint(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path, "a,b,c\n1,2,3\n4,5,7\n"), ["c", "a"])
    assert table.task == "joint"
    assert table.y.tolist() == [[3, 1], [7, 4]]


@pytest.mark.parametrize(
    ("text", "targets", "said"),
    [
        ("a,b,a\n1,2,3\n", ["b"], "several columns named 'a'"),
        (GOOD, ["cost"], "no column 'cost'; its columns are: size, town, price"),
        (GOOD, ["price", "price"], "name a column twice"),
        (GOOD, ["size"], "column 'size' of .* has 1 empty cells"),
        ("price\n1\n2\n", ["price"], "no column besides the targets"),
        ("a,b\n", ["b"], "no rows"),
        ("", ["b"], "empty line"),
        ("a,b\n1,2\n1,2,3,4\n", ["b"], "no regular table"),
        ("a,b\n1,x\n2,y\n3,z\n", ["b"], "holds 'x', which is no finite number"),
        ("a,b\n1,inf\n2,3\n3,4\n", ["b"], "holds 'inf'"),
        ("a,b\n1,5\n2,5\n3,5\n", ["b"], "5 in every row"),
    ],
)
def test_bad_csv_is_refused(tmp_path: Path, text: str, targets: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read_csv(write(tmp_path, text), targets)
    assert "\n" not in str(caught.value).removesuffix("\n.")


def test_bad_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 values, classification compares two"):
        read_csv(write(tmp_path, GOOD), ["price"], "classification")
    with pytest.raises(DataError, match="there is no file"):
        read_csv(tmp_path / "nowhere.csv", ["price"])


@pytest.mark.parametrize("name", list(BUNDLED))
def test_bundled_tables_fit_their_task(name: str) -> None:
    table = load_bundled(name)
    assert len(table.X) == len(table) >= 100
    assert table.task == BUNDLED[name][0]
    assert (table.y.ndim == 2) == (table.task == "joint")
    assert (table.task == "classification") == (set(np.unique(table.y)) == {0.0, 1.0})


def test_the_fingerprint_follows_features_and_targets(tmp_path: Path) -> None:
    prints = {
        read_csv(write(tmp_path, text), ["price"]).fingerprint
        for text in (GOOD, GOOD.replace("1.5", "1.6"), GOOD.replace("30", "31"), GOOD)
    }
    assert len(prints) == 3


def test_uci_files_are_found_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uci").mkdir()
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "uci/yacht.txt", rng.normal(size=(308, 7)))
    np.savetxt(tmp_path / "uci/boston.txt", rng.normal(size=(5, 14)))
    monkeypatch.setenv("AQF_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert available() == ["yacht", "boston"]
    table = load_uci("yacht")
    assert table.X.shape == (308, 6)
    with pytest.raises(DataError, match=r"table of \(5, 14\), but the boston data have 506 rows"):
        load_uci("boston")
    with pytest.raises(DataError, match="--data-root or AQF_DATA"):
        load_uci("energy")
    (tmp_path / "uci/energy.txt").write_text("not numbers")
    with pytest.raises(DataError, match="cannot be read as the energy data"):
        load_uci("energy")


def test_arff_words_become_numbers(tmp_path: Path) -> None:
    path = tmp_path / "kc2.arff"
    path.write_text("% about\n@relation r\n@attribute a numeric\n@data\n1.5,yes\n% rest\n2,no\n")
    assert UCI["kc2"].read(path).tolist() == [[1.5, 1], [2, 0]]


def test_workbooks_are_read_without_a_library(tmp_path: Path) -> None:
    path = tmp_path / "book.xlsx"
    sheet = (
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
        '<row><c r="A1" t="s"><v>0</v></c><c r="C1" t="s"><v>1</v></c></row>'
        '<row><c r="A2"><v>1.5</v></c><c r="C2"><v>-2e3</v></c><c r="D2"/></row><row/>'
        "</sheetData></worksheet>"
    )
    texts = (
        '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
        "<si><t>X1</t></si><si><t>Y1</t></si></sst>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", sheet)
        archive.writestr("xl/sharedStrings.xml", texts)
    assert read_sheet(path) == [["X1", "", "Y1"], ["1.5", "", "-2e3"]]
    path.write_text("no zip")
    with pytest.raises(DataError, match="no readable .xlsx file"):
        read_sheet(path)
