"""Named settings, and the settings of one estimator after its own arguments had their say."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ..validation import lookup

__all__ = ["PRESETS", "Settings", "resolve"]


@dataclass(frozen=True)
class Settings:
    """Everything that shapes a fit; `None` in an estimator's argument means "as the preset says".

    Attributes:
        members: networks in the bag.
        folds: every member leaves out one of this many parts of the data; the parts judge the
            member and recalibrate the bag.
        hidden: sizes of the hidden layers.
        activation: "silu", "relu" or "elu".
        skip: whether a linear function of the inputs is added to the output.
        dropout: share of units dropped after each hidden layer.
        bins: bins of the piecewise-linear encoding of each number; 0 for none.
        unbinned: share of the members that see numbers without their bins. They are smoother, and
            err elsewhere.
        levels: quantile levels per row and step where the loss is not in closed form.
        scheme: how these levels are drawn.
        steps: optimiser steps; None: 4000 for a bag, 1000 for one network.
        batch_size: rows per member and step; None depends on the number of rows.
        learning_rate, weight_decay: of AdamW.
        patience: share of the steps without improvement after which training stops.
        recalibrate: name of a recalibration, or "none".
    """

    members: int = 10
    folds: int = 10
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "silu"
    skip: bool = True
    dropout: tuple[float, ...] = ()
    bins: int = 8
    unbinned: float = 0.3
    levels: int = 16
    scheme: str = "lattice"
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float = 1e-2
    weight_decay: float = 1e-2
    patience: float = 0.5
    recalibrate: str = "spline"

    def n_unbinned(self) -> int:
        """How many members see no bins; never the only one."""
        return min(int(self.unbinned * self.members + 1e-9), self.members - 1)

    def batch_for(self, rows: int) -> int:
        """Rows per member and step."""
        if self.batch_size is not None:
            return self.batch_size
        return max(32, min(512, rows // 8))

    def n_steps(self) -> int:
        """Number of steps; early stopping, not their number, guards small tables."""
        if self.steps is not None:
            return self.steps
        return 4000 if self.members > 1 else 1000


PRESETS: dict[str, Settings] = {
    "default": Settings(),
    "fast": Settings(members=1),
    "paper": Settings(
        members=1,
        activation="relu",
        skip=False,
        dropout=(0.2, 0.1),
        bins=0,
        levels=1,
        scheme="iid",
        steps=3000,
        learning_rate=3e-3,
        weight_decay=0.0,
        recalibrate="none",
    ),
}


def resolve(preset: str, **given: Any) -> Settings:
    """The settings of a preset with everything replaced that was given and is not None.

    Example:
        >>> resolve("fast", hidden=[32], steps=None).hidden
        (32,)
    """
    base = lookup(preset, PRESETS, "preset")
    known = {f.name for f in fields(Settings)}
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None and name in known
    }
    return _checked(replace(base, **changes))


def _checked(settings: Settings) -> Settings:
    at_least: dict[str, float] = {"members": 1, "folds": 2, "bins": 0, "levels": 1}
    at_least |= {"steps": 1, "batch_size": 1, "weight_decay": 0.0}
    for name, least in at_least.items():
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least:g}, got {value!r}.")
    if not 0.0 <= settings.unbinned <= 1.0:
        raise ValueError(f"unbinned must be a share from 0 to 1, got {settings.unbinned!r}.")
    if not settings.learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {settings.learning_rate!r}.")
    return settings
