"""Which models are trained on which data: recipes, and a resumable job for each training."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...datasets import DENSITY, load_density, load_digit_images, load_mnist, read_numbers
from ...datasets.samples import Samples
from ...validation import lookup
from ..records import Record
from ..runner import Job
from .models import METHODS, Architecture, build_model, parameter_count
from .scoring import SAMPLES, score_model, score_samples
from .training import Schedule, Training, train

__all__ = ["RECIPES", "REFERENCE", "Recipe", "choose_data", "choose_methods", "jobs_for"]

# The method whose samples are training rows: what a generator can reach at best.
REFERENCE = "data"
# Samples and test rows that are stored for pictures.
STORED = 1000


@dataclass(frozen=True)
class Recipe:
    """How a model of a data set is built and trained."""

    architecture: Architecture
    schedule: Schedule


TABLE = Recipe(Architecture(hidden=(128, 128)), Schedule(batch_size=256))

RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        Architecture(
            hidden=(512, 512, 512),
            conditioner_options={"residual": True},
            by_class=True,
        ),
        Schedule(steps=1500, weight_decay=0.1, evaluations=10, keep="last"),
    ),
    "mnist": Recipe(
        Architecture("pixelcnn", (16,) * 4, conditioner_options={"kernel": 5}, by_class=True),
        Schedule(steps=600, batch_size=64, learning_rate=5e-3, evaluations=5, averaging=0.99),
    ),
    "power": Recipe(
        Architecture(hidden=(128, 128)),
        Schedule(steps=8000, cpu_seconds=15.0, batch_size=512, evaluations=6),
    ),
    "bsds300": Recipe(
        Architecture("recurrent", (96,), transformer_options={"bins": 4}, levels=4, linear=True),
        Schedule(cpu_seconds=75.0, batch_size=128, learning_rate=5e-3, evaluations=6),
    ),
    "miniboone": TABLE,
    "gas": TABLE,
    "hepmass": TABLE,
    "csv": TABLE,
}


def choose_data(
    name: str, root: str | None = None, csv: Path | None = None, side: int = 28
) -> Callable[[int], Samples]:
    """A function from the seed to the data; only splits of digits and CSV files depend on it.

    Args:
        name: a name in `RECIPES`.
        root: folder of data, see `aqf_core.datasets.data_root`.
        csv: file of the data set "csv".
        side: of MNIST images, 28 or 14.

    Example:
        >>> choose_data("digits")(0).test.shape
        (359, 64)
    """
    lookup(name, RECIPES, "data set")
    if name == "digits":
        return load_digit_images
    if name == "csv":
        if csv is None:
            raise ValueError("the data set csv needs a file.")
        path = csv
        return lambda seed: read_numbers(path, seed)
    load = (lambda: load_density(name, root)) if name in DENSITY else lambda: load_mnist(root, side)
    once = lru_cache(maxsize=1)(load)
    return lambda seed: once()


def choose_methods(names: Sequence[str], images: bool) -> tuple[list[str], list[str]]:
    """The methods with these names, and packages that some of them miss.

    Args:
        names: of `METHODS`, "data", "paper" for the paper's three, or "all".
        images: whether the data are images, on which other libraries are not compared.

    Example:
        >>> choose_methods(["paper"], images=True)
        (['maf-ll', 'maf-ql', 'naqf'], [])
    """
    known = {*METHODS, REFERENCE, "paper", "all"}
    for name in names:
        lookup(name, dict.fromkeys(sorted(known), ""), "method")
    chosen, absent = [], []
    for method in METHODS.values():
        group = "all" if method.package else "paper"
        if not {method.name, group, "all"} & set(names):
            continue
        if method.package and images and method.name not in names:
            continue
        if method.package and find_spec(method.package) is None:
            absent.append(method.package)
            continue
        chosen.append(method.name)
    if {REFERENCE, "all"} & set(names):
        chosen.append(REFERENCE)
    return chosen, absent


def jobs_for(
    data: Callable[[int], Samples],
    methods: Sequence[str],
    seeds: Sequence[int],
    recipe: Recipe,
    folder: Path,
) -> list[Job]:
    """A job for each method and seed.

    Args:
        data: from `choose_data`.
        methods: from `choose_methods`.
        seeds: of the split, the weights and the batches.
        recipe: how to build and train.
        folder: for samples, and for unfinished trainings.
    """
    return [
        Job(_key(data(seed), method, seed, recipe), _Work(data, method, seed, recipe, folder))
        if method != REFERENCE
        else Job(_reference_key(data(seed), seed), _Reference(data, seed, folder), "energy")
        for seed in seeds
        for method in methods
    ]


def _key(data: Samples, method: str, seed: int, recipe: Recipe) -> Record:
    settings = asdict(recipe.architecture) | asdict(recipe.schedule)
    settings["hidden"] = list(settings["hidden"])
    return {
        "dataset": data.name,
        "method": method,
        "seed": seed,
        "data": data.fingerprint,
        "settings": settings,
    }


def _reference_key(data: Samples, seed: int) -> Record:
    return {"dataset": data.name, "method": REFERENCE, "seed": seed, "data": data.fingerprint}


def _facts(data: Samples) -> Record:
    return {
        "features": data.features,
        "shape": list(data.shape),
        "rows": len(data.train),
        "test_rows": len(data.test),
        "remark": data.remark,
    }


def sample_file(folder: Path, record: Record) -> Path:
    """Where the samples of a result are."""
    return folder / f"{record['dataset']}_{record['method']}_{record['seed']}.npz"


def _store(folder: Path, key: Record, samples: torch.Tensor, data: Samples) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kind = np.float32 if data.grey is None else np.uint8
    rows = data.original(samples[:STORED].numpy()).astype(kind)
    file = sample_file(folder, key)
    if data.mean is not None:
        header = ",".join(data.columns)
        np.savetxt(file.with_suffix(".csv"), rows, "%.7g", ",", header=header, comments="")
    np.savez_compressed(
        file,
        samples=rows,
        real=data.original(data.test[:STORED]).astype(kind),
        columns=np.array(data.columns, dtype=np.str_),
        shape=np.array(data.shape),
    )


@dataclass(frozen=True)
class _Reference:
    """Score training rows as if they were samples."""

    data: Callable[[int], Samples]
    seed: int
    folder: Path

    def __call__(self) -> Record:
        data = self.data(self.seed)
        order = np.random.default_rng(self.seed).permutation(len(data.train))
        rows = torch.from_numpy(data.train[order[: SAMPLES + STORED]])
        _store(self.folder, _reference_key(data, self.seed), rows, data)
        return _facts(data) | score_samples(rows, data)


@dataclass(frozen=True)
class _Work:
    """Train a model, score it and store some of its samples."""

    data: Callable[[int], Samples]
    method: str
    seed: int
    recipe: Recipe
    folder: Path

    def __call__(self) -> Record:
        data = self.data(self.seed)
        key = _key(data, self.method, self.seed, self.recipe)
        checkpoint = self.folder / f"{zlib.crc32(repr(key).encode()):08x}.pt"
        model = build_model(self.method, data, self.recipe.architecture, self.seed)
        parameters = parameter_count(model)
        model, history = train(model, data, self.recipe.schedule, self.seed, checkpoint, self._tell)
        scores, samples = score_model(model, data, self.seed)
        _store(self.folder, key, samples, data)
        checkpoint.unlink(missing_ok=True)
        entries: dict[str, Any] = {
            "parameters": parameters,
            "steps": history.steps,
            "train_seconds": round(history.cpu_seconds, 2),
            "best_step": history.curve[history.best(METHODS[self.method].objective)]["step"],
            "curve": history.curve,
        }
        return _facts(data) | scores | entries

    def _tell(self, history: Training) -> None:
        point = history.curve[-1]
        print(
            f"  {self.method}, seed {self.seed}: step {history.steps}, "
            f"{history.cpu_seconds:.0f} s, validation CRPS {point['crps']:.4f}, "
            f"log-likelihood {point['log_likelihood']:.2f}",
            file=sys.stderr,
            flush=True,
        )


def changed(recipe: Recipe, **options: Any) -> Recipe:
    """The recipe with the options that are not None, of whichever part has them.

    A number of steps replaces a CPU time.

    Example:
        >>> short = changed(RECIPES["power"], steps=10, hidden=(8,))
        >>> short.architecture.hidden, short.schedule.cpu_seconds
        ((8,), None)
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "steps" in given:
        given.setdefault("cpu_seconds", None)
    architecture = {k: v for k, v in given.items() if hasattr(recipe.architecture, k)}
    schedule = {k: v for k, v in given.items() if hasattr(recipe.schedule, k)}
    return Recipe(
        replace(recipe.architecture, **architecture), replace(recipe.schedule, **schedule)
    )
