"""Markdown tables of summaries, for logs and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .bootstrap import Estimate
from .comparison import PairedDifference
from .summary import Group, Summary

# Columns of tables with one row per size or class.
GROUP_COLUMNS = ("crps", "calibration_mae", "picp_90", "mpiw_90", "winkler_90", "energy", "nll")
TITLES = {
    "picp": "PICP",
    "mpiw": "MPIW px",
    "winkler": "Winkler px",
    "crps": "CRPS px",
    "nll": "NLL",
    "energy": "energy px",
    "calibration_mae": "cal. MAE",
    "calibration_mae_pooled": "cal. MAE pooled",
}


def title(metric: str) -> str:
    """Column title of a metric."""
    kind, _, percent = metric.partition("_")
    return TITLES.get(metric) or f"{TITLES[kind]} {percent} %"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; the first column is text, the others numbers."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = [("-" * (w - 1)) + ("-" if i == 0 else ":") for i, w in enumerate(widths)]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def number(value: float) -> str:
    """Four significant digits, or a dash."""
    return f"{value:.4g}" if np.isfinite(value) else "-"


def interval(estimate: Estimate) -> str:
    """Value with its 95 % interval."""
    if not np.isfinite(estimate.low):
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def metrics_table(summaries: Mapping[str, Summary]) -> str:
    """All metrics as rows, one column per model or protocol."""
    names = next(iter(summaries.values())).overall.metrics
    rows = [["pairs", *(str(item.overall.n_pairs) for item in summaries.values())]]
    rows += [
        [title(name), *(interval(item.overall.metrics[name]) for item in summaries.values())]
        for name in names
    ]
    return markdown_table(["", *summaries], rows)


def groups_table(groups: Mapping[str, Group], first_column: str) -> str:
    """One row per size or class."""
    rows = [
        [
            name,
            str(group.n_pairs),
            *(
                (interval if key == "crps" else lambda item: number(item.value))(group.metrics[key])
                for key in GROUP_COLUMNS
            ),
        ]
        for name, group in groups.items()
    ]
    return markdown_table([first_column, "pairs", *map(title, GROUP_COLUMNS)], rows)


def differences_table(differences: Mapping[str, PairedDifference], first: str, second: str) -> str:
    """Paired differences, one row per metric."""
    rows = [
        [
            title(name),
            number(item.first),
            number(item.second),
            f"{item.difference:+.4g}",
            f"[{item.low:+.4g}, {item.high:+.4g}]",
            "yes" if item.excludes_zero else "no",
        ]
        for name, item in differences.items()
    ]
    return markdown_table(["", first, second, "difference", "95 % interval", "excludes 0"], rows)
