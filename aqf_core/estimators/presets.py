"""Named settings, and the settings of one estimator after its own arguments had their say."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..validation import lookup

__all__ = ["PRESETS", "Settings", "check_continues", "resolve"]


# Bins per column grow with the root of the number of rows beyond this many, up to so many of them,
# and while all columns together have no more than this: predictions for wide tables stay fast.
ROWS_TO_GROW, MOST_BINS, MOST_INPUTS = 1500, 32, 160


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
        bins: bins of the piecewise-linear encoding of each number; 0 for none. A preset's number
            grows with the table, see `for_table`.
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

    def for_table(self, rows: int, columns: int) -> Settings:
        """With as many bins as a table of so many rows and numerical columns can fill.

        Bins let a network follow steps and bends of single features; the more rows there are, the
        finer are those that can be told from noise. Below `ROWS_TO_GROW` rows nothing changes.

        Example:
            >>> [Settings().for_table(rows, 9).bins for rows in (1000, 6000, 1_000_000)]
            [8, 16, 17]
        """
        if self.bins == 0 or rows <= ROWS_TO_GROW:
            return self
        most = min(MOST_BINS, MOST_INPUTS // max(1, columns))
        grown = round(self.bins * (rows / ROWS_TO_GROW) ** 0.5)
        return replace(self, bins=max(self.bins, min(most, grown)))

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


def resolve(preset: str, table: tuple[int, int] | None = None, **given: Any) -> Settings:
    """The settings of a preset with everything replaced that was given and is not None.

    Args:
        preset: a name in `PRESETS`.
        table: rows and numerical columns to learn from; None for a small table.
        **given: arguments of an estimator; those that are no settings are left alone.

    Example:
        >>> resolve("fast", hidden=[32], steps=None).hidden
        (32,)
    """
    base = lookup(preset, PRESETS, "preset")
    base = base if table is None else base.for_table(*table)
    known = {f.name for f in fields(Settings)}
    changes = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in given.items()
        if value is not None and name in known
    }
    for name, what in (("hidden", "layer sizes such as (64, 64)"), ("dropout", "shares")):
        if name in changes:
            changes[name] = _several(name, changes[name], what)
    return _checked(replace(base, **changes))


def check_continues(before: Settings, now: Settings) -> None:
    """Refuse settings that need another network than the one whose training is to go on.

    Example:
        >>> check_continues(Settings(hidden=(8,)), Settings(hidden=(8,), steps=5))
        >>> check_continues(Settings(members=3), Settings(members=5))
        Traceback (most recent call last):
        ...
        ValueError: members is 5, but the model to be continued was fitted with 3; fit a new model.
    """
    for name in ("members", "hidden", "activation", "skip", "bins", "unbinned"):
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            raise ValueError(
                f"{name} is {new!r}, but the model to be continued was fitted with {old!r}; "
                "fit a new model."
            )


def _several(name: str, values: Any, what: str) -> tuple[Any, ...]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name} must be a sequence of {what}, got {values!r}.")
    return tuple(v.item() if isinstance(v, np.generic) else v for v in values)


def _checked(settings: Settings) -> Settings:
    at_least = {"members": 1, "folds": 2, "bins": 0, "levels": 1, "steps": 1, "batch_size": 1}
    for name, least in at_least.items():
        value = getattr(settings, name)
        if value is not None and not (_is_whole(value) and value >= least):
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    for name in ("learning_rate", "patience"):
        if not _is_number(getattr(settings, name)) or not getattr(settings, name) > 0:
            raise ValueError(f"{name} must be positive, got {getattr(settings, name)!r}.")
    if not _is_number(settings.weight_decay) or not settings.weight_decay >= 0:
        raise ValueError(f"weight_decay must be at least 0, got {settings.weight_decay!r}.")
    if not _is_number(settings.unbinned) or not 0.0 <= settings.unbinned <= 1.0:
        raise ValueError(f"unbinned must be a share from 0 to 1, got {settings.unbinned!r}.")
    if not all(_is_whole(size) and size > 0 for size in settings.hidden):
        raise ValueError(f"hidden must hold positive whole numbers, got {settings.hidden!r}.")
    if not all(_is_number(share) and 0.0 <= share < 1.0 for share in settings.dropout):
        raise ValueError(
            f"dropout must hold shares from 0 up to, but not, 1, got {settings.dropout!r}."
        )
    return settings


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
