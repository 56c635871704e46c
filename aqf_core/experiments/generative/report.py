"""The page of the generative experiments: scores beside the paper's, samples, training curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..comparison import mean_of, number, paired, table
from ..published import GENERATIVE
from ..records import Record
from .figures import draw_curves, pair_plot, save_grid
from .jobs import REFERENCE, sample_file
from .models import METHODS
from .scoring import JUDGED, TEST_ROWS

__all__ = ["generative_page", "write_report"]

Results = Sequence[Record]
OWN = "naqf"
NOTES = {
    "digits": """Scores in grey levels, 0 to 16; every seed is another split. The published CRPS is
near our U-CRPS, not our CRPS; the paper does not say what it is of, nor the units of its quantile
loss and likelihood.""",
    "mnist": """Scores in units of the whole range of greys. The paper does not define U-CRPS; here
it judges every pixel by itself. Its likelihoods are in other units.""",
    "mnist14": """Means over squares of four pixels; scores in units of the whole range of greys.
Published for 28x28, with a U-CRPS that is not defined: CRPS .279 (PixelMAF-LL) and .215
(PixelMAF-QL), U-CRPS .128 and .099.""",
    "power": """In standard deviations of each variable. The conditionals of zuko's three transforms
have no quantile function, so there is no CRPS of them.""",
    "bsds300": """Grey values from 0 to 1, less the mean of the patch. All methods, zuko's too,
model what a linear prediction of every pixel from the earlier ones leaves over. A recurrent
conditioner needs few parameters; with so few, zuko's masked layers are narrow.""",
}
COLUMNS = {
    "crps": ("CRPS", 4),
    "quantile_loss": ("quantile loss", 4),
    "log_likelihood": ("log-likelihood", 1),
    "u_crps": ("U-CRPS", 4),
    "energy": ("energy score", 4),
    "d_loss": ("D-Loss", 3),
    "two_sample_accuracy": ("trees", 3),
    "closer": ("closer", 3),
    "copies": ("copies", 3),
}


def write_report(results: Results, path: Path, command: str, folder: Path) -> list[Path]:
    """Write the page and its pictures beside it; returns what was written.

    Args:
        results: records of `jobs_for`.
        path: of the page; the pictures have its name and a suffix.
        command: shown on the page.
        folder: where the samples are.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    for dataset in _datasets(results):
        for record in _drawn(_first(results, dataset)):
            file = sample_file(folder, record)
            if file.exists():
                title = f"{dataset}: {_label(record)}"
                picture = path.with_name(f"{path.stem}_{dataset}_{record['method']}.png")
                _draw_samples(file, picture)
                pictures[picture.name] = title
    written = [path.with_name(name) for name in pictures]
    curved = [r for r in results if len(r.get("curve", [])) > 1]
    if curved:
        curves = path.with_name(f"{path.stem}_curves.png")
        draw_curves(curved, curves)
        pictures[curves.name] = "log-likelihood and CRPS on validation rows during training"
        written.append(curves)
    path.write_text(generative_page(results, command, pictures))
    return [path, *written]


def _drawn(first: list[Record]) -> list[Record]:
    """Whose samples are drawn: of images those of every model, of tables those of NAQF if any."""
    models = [record for record in first if record["method"] != REFERENCE]
    own = [r for r in models if r["method"] == OWN and len(r["shape"]) == 1]
    return own or models


def _draw_samples(file: Path, picture: Path) -> None:
    with np.load(file, allow_pickle=False) as stored:
        samples, real = stored["samples"], stored["real"]
        columns, shape = stored["columns"].tolist(), tuple(stored["shape"].tolist())
    if len(shape) == 3:
        small = shape[-1] < 20
        count, across = (80, 20) if small else (40, 10)
        images = samples[:count].reshape(-1, *shape[1:])
        save_grid(images, picture, across, scale=4 if small else 2)
    else:
        pair_plot(real, samples, columns, picture)


def generative_page(results: Results, command: str, pictures: dict[str, str]) -> str:
    """The page as Markdown; `pictures` are file names and their titles."""
    parts = [
        f"""# Generated data

Means over seeds; "±" is the standard error of the paired difference from NAQF over seeds. All
methods have the same conditioner and as many parameters, see the settings below. CRPS: of every
variable given the observed earlier ones, mean over variables; the quantile loss is exactly half of
it. U-CRPS: of every variable by itself. Energy score: of joint samples, over the root of the
dimension. D-Loss: accuracy of an SVM that tells samples from test rows, .5 is best; trees: the same
by gradient-boosted trees. Closer: probability that a sample is nearer to the training rows than a
test row is, .5 for new rows and 1 for copies; copies: share of samples equal to a training row.
"Training rows" takes rows that were learned from for samples: the best that can be reached. Scores
are of at most {TEST_ROWS:,} test rows, those of discriminators and neighbours of {JUDGED:,}.

```bash
{command}
```"""
    ]
    for dataset in _datasets(results):
        own = [name for name, title in pictures.items() if title.startswith(f"{dataset}: ")]
        parts.append(_section(results, dataset))
        parts += [f"{pictures[name]}\n\n![{pictures[name]}]({name})" for name in own]
    rest = [name for name, title in pictures.items() if ": " not in title]
    parts += [f"## Training\n\n![{pictures[name]}]({name})" for name in rest]
    present = {name.removesuffix("14") for name in _datasets(results)}
    absent = [name for name in GENERATIVE if name not in present]
    if absent:
        parts.append(f"Data sets of the paper without results here: {', '.join(absent)}.")
    parts.append(_settings(results))
    return "\n\n".join(parts) + "\n"


def _datasets(results: Results) -> list[str]:
    return list(dict.fromkeys(r["dataset"] for r in results))


def _first(results: Results, dataset: str) -> list[Record]:
    """The results of the first seed, in the order of the methods."""
    own = [r for r in results if r["dataset"] == dataset]
    seed = min(r["seed"] for r in own)
    return sorted((r for r in own if r["seed"] == seed), key=_rank)


def _rank(record: Record) -> int:
    return [*METHODS, REFERENCE].index(record["method"])


def _label(record: Record) -> str:
    if record["method"] == REFERENCE:
        return "training rows"
    return METHODS[record["method"]].title(record["settings"]["conditioner"])


def _section(results: Results, dataset: str) -> str:
    first = _first(results, dataset)
    every = {r["method"]: [q for q in results if _same(q, r)] for r in first}
    shown = [e for e in COLUMNS if any(e in r and r[e] == r[e] for r in first)]
    published = GENERATIVE.get(dataset, {})
    rows = []
    most = max(map(len, every.values()))
    for record in first:
        own = every[record["method"]]
        cells = [_label(record) + (f" ({len(own)} of {most} seeds)" if len(own) < most else "")]
        for entry in shown:
            value = mean_of(own, entry) if all(entry in r for r in own) else float("nan")
            cells.append(number(value, COLUMNS[entry][1]))
            if entry in published:
                theirs = published[entry].get(record["method"], float("nan"))
                cells.append(number(theirs, COLUMNS[entry][1] if theirs < 100 else 0))
        trained = "train_seconds" in record
        cells.append(f"{record['parameters']:,}" if trained else "-")
        cells.append(f"{mean_of(own, 'steps'):,.0f}" if trained else "-")
        cells.append(f"{mean_of(own, 'train_seconds'):.0f}" if trained else "-")
        rows.append(cells)
    header = ["method"]
    for entry in shown:
        header.append(COLUMNS[entry][0])
        header += [f"{COLUMNS[entry][0]}, published"] if entry in published else []
    facts = first[0]
    seeds = sorted({r["seed"] for r in results if r["dataset"] == dataset})
    named = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    remark = f" ({facts['remark']})" if facts.get("remark") else ""
    note = NOTES.get(dataset, "")
    if any(r.get("settings", {}).get("cpu_seconds") for r in first):
        note += """ All methods had the same CPU time of one thread; how many steps
that is depends on what else the machine did, too."""
    return (
        f"## {dataset}\n\n{facts['features']} variables, {facts['rows']:,} rows to learn from, "
        f"{facts['test_rows']:,} to test{remark}; {named}. {note}".rstrip()
        + "\n\n"
        f"{table([*header, 'parameters', 'steps', 'CPU seconds'], rows)}\n\n{_differences(every)}"
    ).rstrip()


def _same(record: Record, other: Record) -> bool:
    return all(record.get(k) == other.get(k) for k in ("dataset", "method", "settings"))


def _differences(every: dict[str, list[Record]]) -> str:
    """How the other methods differ from NAQF, in one line per score."""
    ours = every.get(OWN)
    if not ours:
        return ""
    lines = []
    for entry in ("crps", "energy", "u_crps", "d_loss"):
        told = [
            f"{_label(own[0])} {paired(own, ours, entry).shown(COLUMNS[entry][1] + 1)}"
            for name, own in every.items()
            if name not in (OWN, REFERENCE) and own[0][entry] == own[0][entry]
        ]
        if told:
            lines.append(f"- {COLUMNS[entry][0]}, above NAQF: {', '.join(told)}.")
    return "\n".join(lines)


def _settings(results: Results) -> str:
    lines = []
    for dataset in _datasets(results):
        for record in _first(results, dataset):
            if "settings" in record:
                text = ", ".join(f"{k} {v}" for k, v in record["settings"].items() if v != {})
                lines.append(f"- {dataset}: {text}.")
                break
    return "## Settings\n\n" + "\n".join(lines)
