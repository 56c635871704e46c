"""Tables that come with scikit-learn, one for each task, so that experiments run anywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..validation import lookup
from .table import Table, Task

__all__ = ["BUNDLED", "load_bundled"]


def _progression() -> Table:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(as_frame=True, scaled=False)
    return Table("progression", data.data, data.target.to_numpy(np.float64), "regression")


def _cancer() -> Table:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    labels = data.target.to_numpy(np.float64)
    first, second = data.target_names
    return Table("cancer", data.data, labels, "classification", (str(first), str(second)))


def _petals() -> Table:
    from sklearn.datasets import load_iris

    frame = load_iris(as_frame=True).data
    petals = ["petal length (cm)", "petal width (cm)"]
    return Table("petals", frame.drop(columns=petals), frame[petals].to_numpy(np.float64), "joint")


BUNDLED: dict[str, tuple[Task, Callable[[], Table]]] = {
    "progression": ("regression", _progression),
    "cancer": ("classification", _cancer),
    "petals": ("joint", _petals),
}


def load_bundled(name: str) -> Table:
    """Load one of the tables `BUNDLED`.

    Args:
        name: "progression" (scikit-learn's diabetes data, 442 x 10), "cancer" (two classes,
            569 x 30) or "petals" (length and width of iris petals from the sepals, 150 x 2).

    Example:
        >>> load_bundled("petals").y.shape
        (150, 2)
    """
    return lookup(name, BUNDLED, "bundled data set")[1]()
