"""A report on one or several dumps of box pairs: JSON, Markdown and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from aqf_core.metrics import calibration_mae_floor

from .bootstrap import DEFAULT_REPLICATES, Estimate
from .comparison import PairedDifference, paired_bootstrap
from .figures import calibration_figure, groups_figure, hidden_sides_figure, pit_figure
from .hidden_sides import HiddenSides, hidden_sides, paired_hidden_crps
from .matching import PROTOCOLS
from .pairs import BoxPairs
from .scores import PairScores, score_pairs
from .summary import Summary, protocol_mask, summarise
from .tables import differences_table, groups_table, interval, markdown_table, metrics_table


@dataclass(frozen=True)
class _Model:
    """One dump with everything computed from it."""

    pairs: BoxPairs
    scores: PairScores
    summaries: dict[str, Summary]
    hidden: HiddenSides | None


def write_report(
    dumps: Mapping[str, BoxPairs],
    out: str | Path,
    *,
    protocol: str = "strict",
    replicates: int = DEFAULT_REPLICATES,
    seed: int = 0,
    annotations: str | Path | None = None,
) -> list[Path]:
    """Evaluate dumps and write ``report.json``, ``report.md`` and figures.

    Args:
        dumps: Pairs by model name; with several, each two are compared on common ground truths.
        out: Directory, created if needed.
        protocol: Protocol of the figures, of the tables per size and class, and of comparisons.
        replicates: Bootstrap replicates.
        seed: Seed of the bootstrap.
        annotations: ``Annotations`` directory of generated demo scenes, to compare hidden sides
            with their known distribution.

    Returns:
        The files written.
    """
    for name, pairs in dumps.items():
        if not protocol_mask(pairs, protocol).any():
            raise ValueError(f"dump {name} has no pair of detection and ground truth to report on.")
    models = {}
    for name, pairs in dumps.items():
        scores = score_pairs(pairs)
        models[name] = _Model(
            pairs=pairs,
            scores=scores,
            summaries={p: summarise(pairs, p, replicates, seed, scores) for p in PROTOCOLS},
            hidden=None if annotations is None else hidden_sides(pairs, annotations),
        )
    comparisons = {
        (a, b): paired_bootstrap(
            dumps[a], dumps[b], protocol=protocol, replicates=replicates, seed=seed
        )
        for a, b in combinations(dumps, 2)
    }
    hidden_changes = {
        (a, b): paired_hidden_crps(dumps[a], dumps[b], annotations, replicates, seed)
        for a, b in combinations(dumps, 2)
        if annotations is not None
    }
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    figures = _figures(models, protocol, out)
    record = _json(models, comparisons, hidden_changes, protocol, replicates)
    (out / "report.json").write_text(json.dumps(record, indent=1) + "\n")
    text = _markdown(models, comparisons, hidden_changes, protocol, replicates, figures)
    (out / "report.md").write_text(text)
    return [out / "report.json", out / "report.md", *figures]


def _figures(models: Mapping[str, _Model], protocol: str, out: Path) -> list[Path]:
    masks = {name: protocol_mask(model.pairs, protocol) for name, model in models.items()}
    pairs = {name: model.pairs.select(masks[name]) for name, model in models.items()}
    scores = {name: model.scores.select(masks[name]) for name, model in models.items()}
    summaries = {name: model.summaries[protocol] for name, model in models.items()}
    paths = [
        calibration_figure(pairs, out / "calibration.png"),
        pit_figure(scores, out / "pit.png"),
        groups_figure({name: s.classes for name, s in summaries.items()}, out / "per_class.png"),
        groups_figure({name: s.sizes for name, s in summaries.items()}, out / "per_size.png"),
    ]
    hidden = {name: model.hidden for name, model in models.items() if model.hidden is not None}
    if any(len(item) for item in hidden.values()):
        classes = next(iter(models.values())).pairs.classes
        paths.append(hidden_sides_figure(hidden, classes, out / "hidden_sides.png"))
    return paths


def _plain(estimate: Estimate) -> dict[str, float | None]:
    values = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {key: value if value == value else None for key, value in values.items()}


def _json(
    models: Mapping[str, _Model],
    comparisons: Mapping[tuple[str, str], Mapping[str, PairedDifference]],
    hidden_changes: Mapping[tuple[str, str], PairedDifference],
    protocol: str,
    replicates: int,
) -> dict[str, Any]:
    record: dict[str, Any] = {"protocol": protocol, "replicates": replicates, "models": {}}
    for name, model in models.items():
        pairs = model.pairs
        entry: dict[str, Any] = {
            "n_images": len(pairs.image_ids),
            "n_truths": int(pairs.truth_counts.sum()),
            "n_levels": len(pairs.levels),
            "energy_source": pairs.energy_source,
            "calibration_mae_floor": calibration_mae_floor(int(pairs.strict.sum()) or 1),
            **{key: summary.to_dict() for key, summary in model.summaries.items()},
        }
        if model.hidden is not None and len(model.hidden):
            summary = model.hidden.summary(replicates)
            entry["hidden_sides"] = {"n": len(model.hidden)} | {
                key: _plain(item) for key, item in summary.items()
            }
        record["models"][name] = entry
    record["comparisons"] = [
        {
            "first": first,
            "second": second,
            "differences": {name: item.to_dict() for name, item in changes.items()},
            **(
                {"hidden_sides": hidden_changes[first, second].to_dict()}
                if (first, second) in hidden_changes
                else {}
            ),
        }
        for (first, second), changes in comparisons.items()
    ]
    return record


def _markdown(
    models: Mapping[str, _Model],
    comparisons: Mapping[tuple[str, str], Mapping[str, PairedDifference]],
    hidden_changes: Mapping[tuple[str, str], PairedDifference],
    protocol: str,
    replicates: int,
    figures: list[Path],
) -> str:
    parts = ["# Box uncertainty"]
    for name, model in models.items():
        pairs, summary = model.pairs, model.summaries[protocol]
        found, total = int(pairs.strict.sum()), int(pairs.truth_counts.sum())
        floor = calibration_mae_floor(found or 1)
        parts += [
            f"## {name}",
            f"{len(pairs.image_ids)} images, {total} ground truths, {found} of them matched "
            f"(strict). Intervals: 95 %, {replicates} bootstrap replicates over images. Energy "
            f"score from {pairs.energy_source} draws. A perfect model's calibration MAE on as many "
            f"pairs is about {floor:.3g}.",
            metrics_table(model.summaries),
            f"Per object size ({protocol}):",
            groups_table(summary.sizes, "size"),
            f"Per class ({protocol}):",
            groups_table(summary.classes, "class"),
        ]
    hidden = {name: m.hidden for name, m in models.items() if m.hidden is not None}
    if any(len(item) for item in hidden.values()):
        parts += ["## Hidden sides against their known distribution", _hidden_table(hidden)]
        parts += [f"{a} against {b}: {item}" for (a, b), item in hidden_changes.items()]
    for (first, second), changes in comparisons.items():
        any_change = next(iter(changes.values()))
        parts += [
            f"## {first} against {second}",
            f"{any_change.n_pairs} common pairs in {any_change.n_images} images, {protocol} "
            "protocol; the difference is first minus second.",
            differences_table(changes, first, second),
        ]
    parts += [f"![{path.stem}]({path.name})" for path in figures]
    return "\n\n".join(parts) + "\n"


def _hidden_table(models: Mapping[str, HiddenSides]) -> str:
    summaries = {name: item.summary() for name, item in models.items()}
    rows = [["sides", *(str(len(item)) for item in models.values())]]
    for key in next(iter(summaries.values())):
        rows.append(
            [key.replace("_", " "), *(interval(table[key]) for table in summaries.values())]
        )
    return markdown_table(["", *models], rows)
