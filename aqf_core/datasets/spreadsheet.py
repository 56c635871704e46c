"""The numbers in the first sheet of an .xlsx file, with nothing but the standard library."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from .table import DataError

__all__ = ["read_sheet"]

NAMESPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read_sheet(path: Path) -> list[list[str]]:
    """Cells of the first sheet, row by row; empty rows and empty ends of rows are left out.

    An .xlsx file is a zip of XML files: numbers stand in the sheet, texts in a shared list.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
            texts: list[str] = []
            if "xl/sharedStrings.xml" in archive.namelist():
                shared = ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
                texts = ["".join(item.itertext()) for item in shared]
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError) as error:
        raise DataError(f"{path} is no readable .xlsx file: {error}.") from None
    rows: list[list[str]] = []
    for row in sheet.iter(f"{NAMESPACE}row"):
        cells: dict[int, str] = {}
        for cell in row.iter(f"{NAMESPACE}c"):
            value = cell.find(f"{NAMESPACE}v")
            if value is None or value.text is None:
                continue
            text = texts[int(value.text)] if cell.get("t") == "s" else value.text
            cells[_column(cell.get("r", "A"))] = text
        if cells:
            rows.append([cells.get(k, "") for k in range(max(cells) + 1)])
    return rows


def _column(reference: str) -> int:
    """Number of the column, from 0, of a reference such as AB12."""
    letters = re.sub(r"[^A-Z]", "", reference)
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1
