"""What the tabular experiments were meant to reach, beside what they reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from .comparison import mean_of, number, paired, table
from .records import Record

__all__ = ["goals_section"]

Results = Sequence[Record]

CHECK_SCORES = {"yacht": 0.09, "boston": 0.78, "concrete": 1.02, "energy": 0.085}
# Calibration MAE in units of what a perfect model has on as many rows.
CALIBRATION = {"yacht": 1.9, "boston": 1.4, "concrete": 1.4, "energy": 1.4}
AUC = {"diabetes": 0.835, "kc2": 0.84}
FIT_SECONDS = {"qfr": 30.0, "qfr-fast": 3.0}
# What CDFR must not fall behind: the same network by likelihood, and a plain one.
NETWORKS = ("network", "mlp")


class _Goal(NamedTuple):
    what: str
    measured: str
    wanted: str
    met: bool


def goals_section(results: Results) -> str:
    """Every goal about these results as Markdown, the missed ones named first; "" without any.

    Example:
        >>> row = {"dataset": "kc2", "method": "cdfr", "seed": 5, "auc": 0.85, "fit_seconds": 1.0}
        >>> print(goals_section([row]))
        ## Goals
        <BLANKLINE>
        Missed: none.
        <BLANKLINE>
        | goal | measured | wanted | met |
        |---|---|---|---|
        | kc2: AUC of CDFR | .850 | >= .840 | yes |
    """
    goals = [*_regression(results), *_seconds(results), *_classification(results)]
    if not goals:
        return ""
    missed = [
        f"{goal.what} ({goal.measured}, wanted {goal.wanted})" for goal in goals if not goal.met
    ]
    rows = [[g.what, g.measured, g.wanted, "yes" if g.met else "**no**"] for g in goals]
    listed = table(["goal", "measured", "wanted", "met"], rows)
    return f"## Goals\n\nMissed: {'; '.join(missed) or 'none'}.\n\n{listed}"


def _of(results: Results, dataset: str, method: str) -> list[Record]:
    return [r for r in results if r["dataset"] == dataset and r["method"] == method]


def _at_most(what: str, value: float, bound: float, digits: int = 3) -> _Goal:
    return _Goal(what, number(value, digits), f"<= {number(bound, digits)}", value <= bound)


def _at_least(what: str, value: float, bound: float) -> _Goal:
    return _Goal(what, number(value), f">= {number(bound)}", value >= bound)


def _regression(results: Results) -> Iterator[_Goal]:
    for dataset, wanted in CHECK_SCORES.items():
        ours = _of(results, dataset, "qfr")
        if not ours:
            continue
        yield _at_most(f"{dataset}: check score of QFR", mean_of(ours, "check_score"), wanted)
        floor = mean_of(ours, "calibration_mae") / mean_of(ours, "calibration_floor")
        yield _at_most(f"{dataset}: calibration MAE / perfect", floor, CALIBRATION[dataset], 2)
        others = {r["method"] for r in results if r["dataset"] == dataset}
        others = {name for name in others if not name.startswith("qfr")}
        gaps = {name: paired(_of(results, dataset, name), ours, "crps") for name in others}
        if gaps:
            nearest = min(gaps, key=lambda name: gaps[name].mean)
            what = f"{dataset}: lowest CRPS, distance to the next ({nearest})"
            yield _Goal(what, str(gaps[nearest]), "> 0", gaps[nearest].mean > 0)


def _seconds(results: Results) -> Iterator[_Goal]:
    for name, wanted in FIT_SECONDS.items():
        seconds = [
            r["fit_seconds"]
            for r in results
            if r["method"] == name and r["dataset"] in CHECK_SCORES
        ]
        if seconds:
            yield _at_most(f"median fit of {name}, s of one thread", median(seconds), wanted, 1)


def _classification(results: Results) -> Iterator[_Goal]:
    for dataset, wanted in AUC.items():
        ours = _of(results, dataset, "cdfr")
        if not ours:
            continue
        yield _at_least(f"{dataset}: AUC of CDFR", mean_of(ours, "auc"), wanted)
        for name in NETWORKS:
            theirs = _of(results, dataset, name)
            if theirs:
                gap = paired(ours, theirs, "auc")
                what = f"{dataset}: AUC of CDFR beyond that of {name}"
                yield _Goal(what, str(gap), ">= 0", gap.mean >= 0)
