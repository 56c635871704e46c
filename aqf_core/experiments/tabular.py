"""Random splits of tables, and every method on every split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import BUNDLED, UCI, DataError, Table, available, load_bundled, load_uci
from ..datasets.table import Task
from ..metrics import calibration_mae_floor
from ..validation import lookup
from .methods import Method, classifiers, joint_regressors, regressors
from .peers import installed, joint_peers, peers
from .records import Record
from .runner import Job
from .scoring import DENSE_LEVELS, score_joint, score_probabilities, score_quantiles

__all__ = ["choose_methods", "choose_tables", "jobs_for", "methods_for", "split", "stand_in"]

TEST_SHARE = 0.25
JOINT_SAMPLES = 512

Array = NDArray[np.float64]


def methods_for(task: Task) -> list[Method]:
    """All methods for a task, ours first.

    Example:
        >>> [m.name for m in methods_for("classification")][:2]
        ['cdfr', 'cdfr-fast']
    """
    if task == "classification":
        return classifiers()
    if task == "joint":
        return joint_regressors() + joint_peers()
    return regressors() + peers()


def choose_methods(task: Task, names: Sequence[str]) -> tuple[list[Method], list[str]]:
    """The methods of a task among the names, and the packages that are not installed.

    Args:
        task: see `Table`.
        names: names of methods of any task; "all", "own" (no other library) or "peers".

    Raises:
        UnknownNameError: for a name that no task knows.

    Example:
        >>> [m.name for m in choose_methods("regression", ["qfr", "gp"])[0]]
        ['qfr', 'gp']
    """
    tasks: tuple[Task, ...] = ("regression", "classification", "joint")
    known = {m.name: m.name for t in tasks for m in methods_for(t)}
    for name in names:
        lookup(name, known | {"all": "", "own": "", "peers": ""}, "method")
    groups = {
        m.name: {m.name, "all", "own" if m.package is None else "peers"} for m in methods_for(task)
    }
    chosen = [m for m in methods_for(task) if groups[m.name] & set(names)]
    absent = [m.package or "" for m in chosen if not installed(m)]
    return [m for m in chosen if installed(m)], absent


def stand_in(task: Task) -> str:
    """The bundled table of a task.

    Example:
        >>> stand_in("regression")
        'progression'
    """
    return next(name for name, (kind, _) in BUNDLED.items() if kind == task)


def choose_tables(names: Sequence[str], root: str | None) -> tuple[list[Table], list[str]]:
    """Read the tables with these names.

    Args:
        names: of `UCI` and `BUNDLED`; none means all that are there.
        root: folder of data that was asked for, or None for the usual ones. Without any UCI file
            in the usual ones, bundled tables stand in for those that are named.

    Returns:
        The tables, and remarks about those that were replaced.

    Example:
        >>> [table.name for table in choose_tables(["petals"], None)[0]]
        ['petals']
    """
    everything = dict.fromkeys([*UCI, *BUNDLED], "")
    for name in names:
        lookup(name, everything, "data set")
    here = available(root)
    wanted = list(dict.fromkeys(names or here or BUNDLED))
    remarks = []
    if root is None and not here:
        replaced = [name for name in wanted if name in UCI]
        if replaced:
            stand_ins = {name: stand_in(UCI[name].task) for name in replaced}
            wanted = list(dict.fromkeys(stand_ins.get(name, name) for name in wanted))
            remarks.append(
                f"No UCI files were found, so scikit-learn's {', '.join(wanted)} stand in for "
                f"{', '.join(replaced)}; say where the files are with --data-root or AQF_DATA."
            )
    return [load_bundled(n) if n in BUNDLED else load_uci(n, root) for n in wanted], remarks


def split(table: Table, seed: int) -> tuple[Any, Any, Array, Array]:
    """X_train, X_test, y_train, y_test of a random split with a quarter held out."""
    from sklearn.model_selection import train_test_split

    parts = train_test_split(table.X, table.y, test_size=TEST_SHARE, random_state=seed)
    return parts[0], parts[1], parts[2], parts[3]


def jobs_for(table: Table, methods: Sequence[Method], seeds: Sequence[int]) -> list[Job]:
    """A job for each method and split; the seed of the split is also that of the method.

    Raises:
        DataError: if the table is too small to be split.
    """
    if len(table) < 20:
        raise DataError(f"{table.name} has {len(table)} rows; splitting needs at least 20.")
    if table.task == "classification":
        for seed in seeds:
            for part in split(table, seed)[2:]:
                if len(np.unique(part)) < 2:
                    raise DataError(
                        f"split {seed} of {table.name} leaves one class only on one side; the "
                        "rarer class has too few rows."
                    )
    headline = "auc" if table.task == "classification" else "crps"
    return [
        Job(_key(table, method, seed), _Work(table, method, seed), headline)
        for seed in seeds
        for method in methods
    ]


def _key(table: Table, method: Method, seed: int) -> Record:
    return {
        "dataset": table.name,
        "method": method.name,
        "seed": seed,
        "task": table.task,
        "data": table.fingerprint,
        "settings": method.settings,
    }


class _Work:
    """Fit one method on one split and score it."""

    def __init__(self, table: Table, method: Method, seed: int) -> None:
        self.table, self.method, self.seed = table, method, seed

    def __call__(self) -> Record:
        X, X_test, y, y_test = split(self.table, self.seed)
        start = time.process_time()
        fit = self.method.fit(X, y, self.seed)
        seconds = time.process_time() - start
        entries = self._scores(fit, X_test, y_test)
        return entries | {
            "fit_seconds": round(seconds, 3),
            "rows": len(y),
            "test_rows": len(y_test),
            "version": _version(self.method.package),
        }

    def _scores(self, fit: Any, X: Any, y: Array) -> Record:
        if self.table.task == "classification":
            return score_probabilities(fit.probability(X), y)
        if self.table.task == "joint":
            draws = fit.sample(X, JOINT_SAMPLES, self.seed)
            scores = score_joint(lambda levels: fit.quantiles(X, levels), draws, y)
        else:
            scores = score_quantiles(fit.quantiles(X, DENSE_LEVELS), y)
        return scores | {"calibration_floor": calibration_mae_floor(len(y))}


def _version(package: str | None) -> str:
    from importlib.metadata import version

    from .. import __version__

    names = {"sklearn": "scikit-learn", "quantile_forest": "quantile-forest"}
    return f"aqf {__version__}" if package is None else version(names.get(package, package))
