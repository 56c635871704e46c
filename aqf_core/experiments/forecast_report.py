"""The page of the forecasting experiments: tables, and the bands of two methods over the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..datasets.time_series import TimeSeries
from .comparison import hand_written, mean_of, number, table
from .forecast_scoring import share_of_wins
from .forecasting import METHODS, NAIVE, VIEWS
from .records import Record

__all__ = ["draw_bands", "forecast_page", "write_report"]

OWN = "aqf"
Results = Sequence[Record]


def write_report(
    results: Results, path: Path, command: str, about: Mapping[str, TimeSeries]
) -> list[Path]:
    """Write the page, above the notes of an earlier one, and a figure per data set beside it;
    returns what was written.

    Args:
        results: records of `forecasting.jobs_for`.
        path: of the page; figures have its name and that of the data set.
        command: shown on the page.
        about: the data sets by name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = {}
    for name in _names(results):
        shown = [r for r in results if r["dataset"] == name and "bands" in r]
        if shown:
            figures[name] = path.with_name(f"{path.stem}_{name}.png")
            draw_bands(shown, figures[name])
    names = {name: figure.name for name, figure in figures.items()}
    path.write_text(forecast_page(results, command, about, names) + hand_written(path))
    return [path, *figures.values()]


def forecast_page(
    results: Results, command: str, about: Mapping[str, TimeSeries], figures: dict[str, str]
) -> str:
    """The page as Markdown."""
    first = results[0]
    parts = [
        f"""# Probabilistic forecasts of time series

Every window reads {first["context"]} steps and forecasts {first["horizon"]} by {first["paths"]}
sample paths; origins are {first["horizon"]} steps apart and fill the last part of each series,
which nothing was fitted on. The networks differ by their output only: same LSTM, inputs,
windows, number of steps and sampling. ND is the sum of absolute errors of the median over the sum
of values, RMSE that of the mean over the mean value, CHK the mean pinball loss over .01 ... .99 in
the units of the series, wQL its scale-free form. Means over seeds; ± is the standard deviation.

```bash
{command}
```"""
    ]
    for name in _names(results):
        chosen = [r for r in results if r["dataset"] == name]
        parts.append(_section(about[name], chosen))
        if name in figures:
            parts.append(
                "The band holds the paths' quantiles .1 to .9, the line is what came true; "
                f"{SHOWN} windows in a row.\n\n![forecasts of {name}]({figures[name]})"
            )
    parts += [_published(results), _methods(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


SHOWN = "three"
# ND, RMSE and check score in the paper's table.
PUBLISHED = {
    "deepar": (0.099, 0.692, 89.15),
    "mqrnn": (0.099, 0.712, 88.91),
    "aqf": (0.098, 0.723, 88.02),
}


def _names(results: Results) -> list[str]:
    return list(dict.fromkeys(r["dataset"] for r in results))


def _of(results: Results, method: str) -> list[Record]:
    return [r for r in results if r["method"] == method]


def _present(results: Results) -> list[str]:
    there = {r["method"] for r in results}
    return [name for name in METHODS if name in there]


def _section(data: TimeSeries, results: Results) -> str:
    first, about = results[0], data.about
    seeds = len({r["seed"] for r in results})
    count = first["windows"] - first["apart"]
    head = (
        f"## {data.name}\n\n{about[:1].upper()}{about[1:]}. {first['series']} series, "
        f"{count} test windows each ({first['test_windows']:,} in all), {seeds} "
        f"seed{'s' if seeds > 1 else ''}."
    )
    parts = [head, _scores(results), _goals(results), _coverage(results), _quarters(results)]
    parts += [_paths(results), _wins(results), _apart(data, results)]
    return "\n\n".join(part for part in parts if part)


def _apart(data: TimeSeries, results: Results) -> str:
    """The windows that are scored by themselves."""
    rows = []
    for method in _present(results):
        records = [r["later"] for r in _of(results, method) if "later" in r]
        if records:
            row = [METHODS[method].title, number(mean_of(records, "nd"), 4)]
            row.append(number(mean_of(records, "rmse")))
            there = "check_score" in records[0]
            row.append(_check(mean_of(records, "check_score")) if there else "-")
            row.append(number(mean_of(records, "coverage_80")) if there else "-")
            rows.append(row)
    if not rows:
        return ""
    head = f"The last {results[0]['apart']} windows by themselves ({data.why_apart}):"
    return head + "\n\n" + table(["method", "ND", "RMSE", "CHK", "80 %"], rows)


def _scores(results: Results) -> str:
    rows = []
    seeds = len({r["seed"] for r in results})
    for method in _present(results):
        records = _of(results, method)
        fewer = METHODS[method].seeded and len(records) < seeds
        title = METHODS[method].title + (f" ({len(records)} of {seeds} seeds)" if fewer else "")
        row = [title, _spread(records, "nd", 4), _spread(records, "rmse", 3)]
        if method in NAIVE:
            row += ["-"] * 5
        else:
            digits = _digits(mean_of(records, "check_score"))
            row += [_spread(records, "check_score", digits), _spread(records, "wql", 4)]
            row += [number(mean_of(records, f"coverage_{c}")) for c in (50, 80, 90)]
        rows.append([*row, _seconds(records)])
    header = ["method", "ND", "RMSE", "CHK", "wQL", "50 %", "80 %", "90 %", "fit, s"]
    return table(header, rows)


def _spread(records: Results, entry: str, digits: int) -> str:
    values = [r[entry] for r in records]
    mean = number(float(np.mean(values)), digits)
    return f"{mean} ± {number(float(np.std(values, ddof=1)), digits)}" if len(values) > 1 else mean


def _digits(score: float) -> int:
    """Digits behind the point of a score in the units of the series, which may be small."""
    return 2 if abs(score) >= 10 else 4


def _check(score: float) -> str:
    return number(score, _digits(score))


def _seconds(records: Results) -> str:
    values = [r["fit_seconds"] for r in records if "fit_seconds" in r]
    return f"{np.mean(values):.0f}" if values else "-"


def _coverage(results: Results) -> str:
    """Recalibration: what it changes, and coverage over the horizon."""
    rows = []
    for method in _present(results):
        records = [r for r in _of(results, method) if "raw" in r]
        if not records:
            continue
        row = [METHODS[method].title]
        parts = [[r.get(kind, r) for r in records] for kind in ("raw", "fixed", "")]
        row += [_check(mean_of(part, "check_score")) for part in parts]
        for part in parts:
            steps = np.mean([r["by_step"] for r in part], axis=0)
            row.append(f"{number(steps.mean())} ({number(steps.min())}-{number(steps.max())})")
        rows.append(row)
    if not rows:
        return ""
    header = ["method", "CHK raw", "CHK fixed", "CHK", "80 % raw (lowest-highest step)"]
    header += ["80 % fixed", "80 %"]
    return (
        "Recalibration: without it, with one map per step of the horizon as fitted on the held-out "
        "windows before the test span (fixed), and following the forecasts that had come true at "
        "each origin, as everywhere else on this page (GluonTS has none):\n\n" + table(header, rows)
    )


def _quarters(results: Results) -> str:
    """Check score and coverage in the four parts of the test span."""
    rows = []
    for method in _present(results):
        records = [r for r in _of(results, method) if "by_origin" in r]
        if not records or len(records[0]["by_origin"]) < 4:
            continue
        row = [METHODS[method].title]
        for entry, shown in (("by_origin", _check), ("coverage_by_origin", number)):
            parts = np.array_split(np.mean([r[entry] for r in records], axis=0), 4)
            row += [shown(float(part.mean())) for part in parts]
        rows.append(row)
    if not rows:
        return ""
    header = ["method", *(f"CHK {k}" for k in range(1, 5)), *(f"80 % {k}" for k in range(1, 5))]
    return "The four quarters of the test span, in time:\n\n" + table(header, rows)


def _paths(results: Results) -> str:
    """Every way to read off a step, and joint paths beside those as they were rolled out."""
    rows = []
    for method in _present(results):
        records = [r for r in _of(results, method) if "rolled_energy" in r]
        if not records:
            continue
        row = [METHODS[method].title]
        for view in VIEWS:
            known = [r["views"][view] for r in records if view in r["views"]]
            held = [r["views_80"][view] for r in records if view in r["views"]]
            mean = (
                f"{_check(float(np.mean(known)))} ({number(float(np.mean(held)))})"
                if known
                else "-"
            )
            row.append(mean)
        row.append(", ".join(dict.fromkeys(r["used"] for r in records)))
        row += [number(mean_of(records, n), 4) for n in ("energy", "rolled_energy")]
        rows.append(row)
    if not rows:
        return ""
    header = ["method", *(f"CHK {view}" for view in VIEWS), "used", "energy", "energy rolled"]
    return (
        "Check score and 80 % coverage without recalibration of each way to read off a step (the "
        "network forecasts it directly, as MQ-RNN was published; the paths are rolled out step by "
        "step, as DeepAR was published; the mean of both), and the one in use, which held-out "
        "windows chose. The energy score judges whole paths, the final ones and those as they were "
        "rolled out, on some of the windows and relative to the mean value:\n\n"
        + table(header, rows)
    )


def _goals(results: Results) -> str:
    """How AQF stands to the others, in per cent."""
    own = _of(results, OWN)
    if not own:
        return ""
    rows = []
    for method in _present(results):
        if method == OWN:
            continue
        records = _of(results, method)
        row = [METHODS[method].title]
        row += [_relative(own, records, entry) for entry in ("nd", "rmse", "check_score")]
        rows.append(row)
    if not rows:
        return ""
    several = "; means over seeds, ± is the standard deviation" if len(own) > 1 else ""
    return f"AQF relative to each (negative: AQF is better{several}):\n\n" + table(
        ["method", "ND", "RMSE", "CHK"], rows
    )


def _relative(own: Results, others: Results, entry: str) -> str:
    """Per cent by which an entry is higher than that of the same seed, or of the only one."""
    if not all(entry in r for r in others):
        return "-"
    theirs = {r["seed"]: r[entry] for r in others}
    if not METHODS[others[0]["method"]].seeded:
        theirs = {r["seed"]: others[0][entry] for r in own}
    pairs = [(r[entry], theirs[r["seed"]]) for r in own if r["seed"] in theirs]
    if not pairs:
        return "-"
    changes = [100 * (ours / other - 1) for ours, other in pairs]
    spread = f" ± {np.std(changes, ddof=1):.1f}" if len(changes) > 1 else ""
    return f"{np.mean(changes):+.1f}{spread} %"


def _published(results: Results) -> str:
    """What the paper reports on data of the same name."""
    if not any(r["dataset"] == "electricity" for r in results):
        return ""
    rows = [
        [METHODS[method].title, number(nd), number(rmse), number(check, 2)]
        for method, (nd, rmse, check) in PUBLISHED.items()
    ]
    return (
        "## Published figures\n\n"
        "Of the same three methods in the paper, on hourly loads of 321 clients over three years: "
        "70,299 test windows of 24 hours. Other data and another test span, so they cannot be "
        "compared with the tables above.\n\n" + table(["method", "ND", "RMSE", "CHK"], rows)
    )


def _wins(results: Results) -> str:
    own = {r["seed"]: np.array(r["crps_series"]) for r in _of(results, OWN)}
    rows = []
    for method in _present(results):
        if method == OWN or method in NAIVE:
            continue
        pairs = [
            share_of_wins(own[r["seed"]], np.array(r["crps_series"]))
            for r in _of(results, method)
            if r["seed"] in own
        ]
        if pairs:
            shares = [f"{100 * s:.0f} %" for s in np.mean(pairs, axis=0)]
            rows.append([METHODS[method].title, *shares])
    if not rows:
        return ""
    header = ["method", "AQF better", "within 5 %", "AQF worse"]
    return "Series by mean CRPS:\n\n" + table(header, rows)


def _methods(results: Results) -> str:
    rows = [f"- {METHODS[m].title}: {METHODS[m].about}." for m in _present(results)]
    return "## Methods\n\n" + "\n".join(rows)


def draw_bands(results: Results, path: Path) -> None:
    """Bands of DeepAR and AQF (or whatever there is) over the truth, a row of pictures each."""
    from matplotlib.figure import Figure

    from ..plots import fan_chart

    there = {r["method"]: r for r in reversed(results)}
    order = [m for m in ("deepar", OWN) if m in there] or list(there)[:2]
    columns = len(there[order[0]]["bands"])
    figure = Figure(figsize=(4.2 * columns, 2.6 * len(order)), layout="constrained")
    grid = figure.subplots(len(order), columns, squeeze=False, sharex="col", sharey="col")
    last = len(order) - 1
    for k, (row, method) in enumerate(zip(grid, order, strict=True)):
        for ax, band in zip(row, there[method]["bands"], strict=True):
            quantiles = np.stack([band["low"], band["mid"], band["high"]], -1)
            title = f"{METHODS[method].title}, {band['series']}"
            fan_chart([0.1, 0.5, 0.9], quantiles, band["truth"], ax=ax, title=title)
            ax.set_xlabel("steps" if k == last else "")
            ax.set_ylabel("value" if ax is row[0] else "")
            ax.get_legend().remove()
    # Below the pictures, where it hides no curve.
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=80)
