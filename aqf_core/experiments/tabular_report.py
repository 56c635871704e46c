"""The page of the tabular experiments: tables with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .comparison import mean_of, number, paired, table
from .methods import Method
from .peers import peers
from .published import CLASSIFICATION, TABLE_1
from .records import Record
from .tabular import methods_for
from .tabular_figures import draw_calibration, draw_crps, draw_roc
from .tabular_goals import goals_section

__all__ = ["commands_for", "tabular_page", "write_report"]

OWN = "qfr"
Results = Sequence[Record]


def write_report(results: Results, path: Path, command: str) -> list[Path]:
    """Write the page and its figures beside it; returns what was written.

    Args:
        results: records of `tabular.jobs_for`.
        path: of the page; the figures have its name and a suffix.
        command: shown on the page.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = []
    for task, kind, draw in (
        ("regression", "crps", draw_crps),
        ("regression", "calibration", draw_calibration),
        ("classification", "roc", draw_roc),
    ):
        chosen = [r for r in results if r["task"] == task]
        if chosen:
            figures.append(path.with_name(f"{path.stem}_{kind}.png"))
            draw(chosen, figures[-1])
    path.write_text(tabular_page(results, command, [figure.name for figure in figures]))
    return [path, *figures]


def commands_for(results: Results) -> str:
    """The commands that have these results, whatever was run in which order.

    Example:
        >>> some = [{"dataset": d, "method": "qfr", "seed": s} for d in "ab" for s in (5, 6)]
        >>> print(commands_for(some))
        python tools/run_tabular.py --datasets a b --methods qfr --first-seed 5 --seeds 2
    """
    datasets: dict[tuple[tuple[int, ...], tuple[str, ...]], list[str]] = {}
    for dataset in _datasets(results):
        methods: dict[tuple[int, ...], list[str]] = {}
        for name in dict.fromkeys(r["method"] for r in results if r["dataset"] == dataset):
            seeds = tuple(sorted({r["seed"] for r in _of(results, dataset, name)}))
            methods.setdefault(seeds, []).append(name)
        for seeds, names in methods.items():
            datasets.setdefault((seeds, tuple(sorted(names))), []).append(dataset)
    return "\n".join(
        f"python tools/run_tabular.py --datasets {' '.join(where)} --methods {' '.join(names)} "
        f"--first-seed {seeds[0]} --seeds {seeds[-1] - seeds[0] + 1}"
        for (seeds, names), where in datasets.items()
    )


def tabular_page(results: Results, command: str, figures: Sequence[str] = ()) -> str:
    """The page as Markdown."""
    seeds = sorted({r["seed"] for r in results})
    parts = [
        f"""# Predictive distributions of tables

Random splits {_spans(seeds)}, a quarter of the rows held out (`train_test_split(test_size=.25,
random_state=split)`), targets in their own units, one thread. The check score is the mean pinball
loss over the levels .01 ... .99, CRPS is twice the pinball loss integrated over 999 levels, by the
same rule for every method. "CRPS - QFR" is the mean paired difference over splits with its standard
error: positive means that QFR is better. Methods with fewer splits say so; their differences are
over the splits that both have.

```bash
{command}
```"""
    ]
    parts += [goals_section(results)] if goals_section(results) else []
    for task, section in (
        ("regression", _regression),
        ("classification", _classification),
        ("joint", _joint),
    ):
        chosen = [r for r in results if r["task"] == task]
        if chosen:
            parts.append(section(chosen))
    parts += [f"![{name}]({name})" for name in figures]
    parts.append(_settings(results))
    return "\n\n".join(parts) + "\n"


def _spans(seeds: Sequence[int]) -> str:
    if len(seeds) > 1 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(str(seed) for seed in seeds)


def _datasets(results: Results) -> list[str]:
    return list(dict.fromkeys(r["dataset"] for r in results))


def _of(results: Results, dataset: str, method: str) -> list[Record]:
    return [r for r in results if r["dataset"] == dataset and r["method"] == method]


def _methods(results: Results) -> list[Method]:
    """The methods that have results, in the order of the library."""
    present = {r["method"] for r in results}
    return [m for m in methods_for(results[0]["task"]) if m.name in present]


def _regression(results: Results) -> str:
    parts = ["## Regression"]
    summary = _paper_summary(results)
    if summary:
        parts.append(summary)
    for dataset in _datasets(results):
        rows = []
        ours = _of(results, dataset, OWN)
        for method in _methods(results):
            own = _of(results, dataset, method.name)
            if not own:
                continue
            ratio = mean_of(own, "crps") / (2 * mean_of(own, "check_score"))
            rows.append(
                [
                    _label(method, own, ours),
                    number(mean_of(own, "check_score")),
                    number(mean_of(own, "crps")),
                    "" if method.name == OWN else str(paired(own, ours, "crps")),
                    number(mean_of(own, "mae")),
                    number(mean_of(own, "calibration_mae")),
                    number(mean_of(own, "coverage_90"), 2),
                    number(ratio),
                    number(mean_of(own, "fit_seconds"), 1),
                ]
            )
        first = [r for r in results if r["dataset"] == dataset]
        header = ["method", "check score", "CRPS", "CRPS - QFR", "MAE", "calibration MAE"]
        header += ["90 % coverage", "CRPS / (2 chk)", "fit, s"]
        parts.append(
            f"### {dataset}\n\n{first[0]['rows']} rows to learn from, {first[0]['test_rows']} to "
            f"test. A perfect model has a calibration MAE of {first[0]['calibration_floor']:.3f} "
            f"on average.\n\n{table(header, rows)}\n\n{_verdict(results, dataset, 'crps')}"
        )
    return "\n\n".join(parts)


def _label(method: Method, own: Results, ours: Results) -> str:
    """The label, with the number of splits if there are fewer than of the flow itself."""
    if len(own) >= len(ours):
        return method.label
    return f"{method.label} ({len(own)} split{'s' if len(own) > 1 else ''})"


def _absent(results: Results, dataset: str) -> str:
    """The methods without a result on this table that have one on another, in one sentence."""
    absent = [m.label for m in _methods(results) if not _of(results, dataset, m.name)]
    return f" Not measured on this table: {'; '.join(absent)}." if absent else ""


def _verdict(results: Results, dataset: str, entry: str) -> str:
    """Whether QFR is ahead of every other method, in one sentence."""
    ours = _of(results, dataset, OWN)
    if not ours:
        return ""
    behind, near = [], []
    for method in _methods(results):
        others = _of(results, dataset, method.name)
        if method.name.startswith(OWN) or not others:
            continue
        difference = paired(others, ours, entry)
        if difference.mean <= 0:
            behind.append(f"{method.label} ({difference})")
        elif difference.mean < 2 * difference.error:
            near.append(f"{method.label} ({difference})")
    best = f"QFR is not the best: ahead of it is {', '.join(behind)}." if behind else ""
    best = best or "QFR is ahead of every method measured here."
    close = f" Within two standard errors: {', '.join(near)}." if near else ""
    return best + close + _absent(results, dataset)


def _paper_summary(results: Results) -> str:
    """Table 1 of the paper with our means beside it."""
    names = ["gaussian", "qro", "mdn", "qfr", "cdfr"]
    known = [d for d in _datasets(results) if d in TABLE_1]
    if not known:
        return ""
    labels = {m.name: m.label for m in methods_for("regression")}
    parts = []
    entries = ("check_score", "mae", "calibration_mae")
    titles = {"check_score": "Check score", "mae": "MAE", "calibration_mae": "Calibration MAE"}
    for entry in entries:
        rows = []
        for dataset in known:
            most = len({r["seed"] for r in results if r["dataset"] == dataset})
            for source, suffix in (("ours", ""), ("paper's recipe, here", "-paper")):
                all_own = [_of(results, dataset, f"{n}{suffix}") for n in names]
                if any(all_own):
                    cells = (_mean_cell(own, entry, most) for own in all_own)
                    rows.append([dataset, source, *cells])
            published = TABLE_1[dataset][entry]
            rows.append([dataset, "published", *(number(published[n]) for n in names)])
        header = ["data set", "figures", *(labels[n] for n in names)]
        parts.append(f"{titles[entry]}:\n\n{table(header, rows)}")
    note = """The published CRPS column is not comparable. CRPS is twice the integral of the pinball
loss, so it must be about 1.98 times the check score; the published QFR has a CRPS of .025 and a
check score of .865 on boston, .697 and 1.191 on concrete, .578 and 1.183 on energy. No forecast can
have both, so only the other columns are set beside ours. The published "energy" rows nearly repeat
those of concrete and are far above what any model gets on the heating loads of this data set."""
    few = (
        "A number in brackets: the mean is over so many splits only, and not comparable in its row."
    )
    return "### The paper's Table 1\n\n" + "\n\n".join([few, *parts, note])


def _mean_cell(own: Results, entry: str, most: int) -> str:
    """The mean, with the number of splits behind it if there are fewer than `most`."""
    few = f" ({len(own)})" if 0 < len(own) < most else ""
    return number(mean_of(own, entry)) + few


def _classification(results: Results) -> str:
    parts = ["## Two classes"]
    for dataset in _datasets(results):
        ours = _of(results, dataset, "cdfr")
        rows = []
        for method in _methods(results):
            own = _of(results, dataset, method.name)
            if own:
                gap = "" if method.name == "cdfr" else str(paired(own, ours, "auc"))
                means = (mean_of(own, e) for e in ("accuracy", "brier", "log_loss"))
                auc = number(mean_of(own, "auc"))
                seconds = number(mean_of(own, "fit_seconds"), 1)
                label = _label(method, own, ours)
                rows.append([label, auc, gap, *(number(v) for v in means), seconds])
        published = CLASSIFICATION.get(dataset)
        if published:
            network, cdfr = number(published["network"]), number(published["cdfr"])
            paper = f"Published, a metric without a name: network {network}, CDFR {cdfr}."
        else:
            paper = ""
        header = ["method", "AUC", "AUC - CDFR", "accuracy", "Brier", "log loss", "fit, s"]
        parts.append(f"### {dataset}\n\n{table(header, rows)}\n\n{paper}".rstrip())
    return "\n\n".join(parts)


def _joint(results: Results) -> str:
    parts = [
        """## Several targets

CRPS, check score and calibration are means over the targets; the energy score of joint samples,
divided by the root of the number of targets, judges their dependence as well."""
    ]
    for dataset in _datasets(results):
        ours = _of(results, dataset, OWN)
        rows = []
        for method in _methods(results):
            own = _of(results, dataset, method.name)
            if own:
                each = zip(*(r["crps_targets"] for r in own), strict=True)
                targets = " / ".join(number(sum(t) / len(t)) for t in each)
                gap = "" if method.name == OWN else str(paired(own, ours, "energy"))
                entries = ("check_score", "crps", "calibration_mae", "energy")
                means = [number(mean_of(own, e)) for e in entries]
                seconds = number(mean_of(own, "fit_seconds"), 1)
                label = _label(method, own, ours)
                rows.append([label, *means[:2], targets, *means[2:], gap, seconds])
        header = ["method", "check score", "CRPS", "CRPS of each", "calibration MAE"]
        header += ["joint (energy)", "joint - QFR", "fit, s"]
        verdict = _verdict(results, dataset, "energy")
        parts.append(f"### {dataset}\n\n{table(header, rows)}\n\nJoint score: {verdict}")
    return "\n\n".join(parts)


def _settings(results: Results) -> str:
    """What was set, of every method that has results."""
    seen = {(r["method"], r["settings"]): r.get("version", "") for r in results}
    lines = [f"- `{name}` ({version}): {text}" for (name, text), version in seen.items()]
    absent = [m.label for m in peers() if m.name not in {r["method"] for r in results}]
    left_out = ""
    if absent and any(r["task"] == "regression" for r in results):
        left_out = f"\n\nNot in this run: {', '.join(absent)}."
    return (
        '## Settings\n\nOne set per method for all data sets. QFR and CDFR have `support="auto"`: '
        "where targets are positive and close to zero (yacht, and concrete on most splits) they "
        "take zero as a bound; the other heads have none. Settings of other libraries were "
        "chosen in their favour: a few were tried on splits 0-2 of yacht, by test scores.\n\n"
        + "\n".join(lines)
        + left_out
    )
