"""Means over splits, paired differences, and tables of them in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .records import Record

__all__ = ["Difference", "hand_written", "mean_of", "number", "paired", "table"]

# Below this title a page is written by hand.
NOTES = "## What to keep in mind"


def hand_written(page: Path) -> str:
    """What people wrote below the tables of an earlier page, under its own title."""
    if not page.is_file():
        return ""
    _, title, text = page.read_text().partition(f"\n{NOTES}\n")
    return title + text


@dataclass(frozen=True)
class Difference:
    """Mean difference of paired results and its standard error.

    Attributes:
        mean: of the differences.
        error: standard error of the mean, NaN for a single pair.
        pairs: how many there are.
    """

    mean: float
    error: float
    pairs: int

    def __str__(self) -> str:
        return self.shown()

    def shown(self, digits: int = 3) -> str:
        """Mean and standard error."""
        spread = "" if np.isnan(self.error) else f" ± {number(self.error, digits)}"
        return f"{number(self.mean, digits, sign=True)}{spread}"


def mean_of(records: Sequence[Record], entry: str) -> float:
    """Mean of an entry over the records, NaN without any.

    Example:
        >>> mean_of([{"crps": 1.0}, {"crps": 2.0}], "crps")
        1.5
    """
    values = [record[entry] for record in records]
    return float(np.mean(values)) if values else float("nan")


def paired(records: Sequence[Record], others: Sequence[Record], entry: str) -> Difference:
    """Differences records - others of an entry over the seeds that both have.

    Example:
        >>> a = [{"seed": 0, "crps": 1.0}, {"seed": 1, "crps": 2.0}]
        >>> b = [{"seed": 1, "crps": 1.5}, {"seed": 0, "crps": 1.1}]
        >>> print(paired(a, b, "crps"))
        +.200 ± .300
    """
    theirs = {record["seed"]: record[entry] for record in others}
    values = np.array([r[entry] - theirs[r["seed"]] for r in records if r["seed"] in theirs])
    if len(values) == 0:
        return Difference(float("nan"), float("nan"), 0)
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Difference(float(values.mean()), error, len(values))


def number(value: float, digits: int = 3, sign: bool = False) -> str:
    """A number without its leading zero, "-" for NaN.

    Example:
        >>> number(0.25), number(-0.5, 1), number(12.0), number(float("nan"))
        ('.250', '-.5', '12.000', '-')
    """
    if np.isnan(value):
        return "-"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("-0.", "-.").replace("+0.", "+.").removeprefix("0") if digits else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(table(["method", "crps"], [["qfr", ".2"]]))
        | method | crps |
        |---|---|
        | qfr | .2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "|" + "|".join(line) + "|" if line[0] == "---" else "| " + " | ".join(line) + " |"
        for line in lines
    )
