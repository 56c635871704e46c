"""Named settings of forecasters, and those of one after its own arguments had their say."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ..validation import lookup
from .calendar import CALENDARS

__all__ = ["PRESETS", "Settings", "resolve"]


@dataclass(frozen=True)
class Settings:
    """Everything that shapes a fit; `None` in a forecaster's argument means "as the preset says".

    Attributes:
        context: steps of history that are read; None depends on the frequency (168 for hours).
        lags: how many steps ago further inputs are; None depends on the frequency (24, 48, 168).
        hidden: state sizes of the LSTM layers.
        embedding: size of the embedding of a series.
        dropout: share of units dropped between layers.
        calendar: "cyclic" or "linear" encoding of hour, weekday and month.
        offset: added to the scale of a window.
        centred: whether the mean of a window is subtracted before it is divided by the standard
            deviation, instead of being divided by the mean only; None does so where the changes
            over a season are small beside the level.
        transformer: of the flow.
        transformer_options: of the flow, as pairs.
        levels: quantile levels per value and step of the flow's loss.
        scheme: how these levels are drawn.
        rollout: rolled-out paths per window from which the flow learns in the second half of
            training, at least 2 (see `rollout`); 0 learns one step from the truth only.
        steps: optimiser steps.
        batch_size: windows per step.
        learning_rate, weight_decay: of AdamW.
        averaging: how much of the past the average of the weights keeps per step.
        flat: a constant learning rate instead of one cycle.
        patience: share of the evaluations without improvement after which training stops.
        unknown: share of training windows whose series is hidden, for series yet unseen.
        marginals: where the distribution of a step comes from: "rolled" (from paths that step on
            from their own values), "direct" (the network forecasts the step from what is known at
            the origin: exact quantiles, no sampling), "both", the mean of their quantiles, or
            "auto", the mean unless one of the two has a clearly lower quantile loss on held-out
            windows.
        weighting: windows are drawn in proportion to this power of their scale; 1 is DeepAR's rule.
        validation: steps at the end of each series that do not train but stop training and
            recalibrate; None: fourteen horizons (more if there are few series), but at most a
            quarter of each series.
        recalibrate: "spline", "isotonic", "conformal" or "none", one map per step of the horizon,
            or one factor for all widths if fewer than 20 held-out windows do not overlap.
        refit: steps, relative to those before, of a last part of training that also learns from
            the held-out windows once these have done their work.
    """

    context: int | None = None
    lags: tuple[int, ...] | None = None
    hidden: tuple[int, ...] = (40, 40, 40)
    embedding: int = 20
    dropout: float = 0.1
    calendar: str = "cyclic"
    offset: float = 0.0
    centred: bool | None = None
    transformer: str = "spline"
    transformer_options: tuple[tuple[str, Any], ...] = ()
    levels: int = 8
    scheme: str = "lattice"
    rollout: int = 0
    steps: int = 600
    batch_size: int = 64
    learning_rate: float = 1e-2
    weight_decay: float = 1e-3
    averaging: float = 0.99
    flat: bool = False
    patience: float = 0.4
    unknown: float = 0.05
    marginals: str = "auto"
    weighting: float = 0.0
    validation: int | None = None
    recalibrate: str = "spline"
    refit: float = 0.25


PRESETS: dict[str, Settings] = {
    "default": Settings(),
    "fast": Settings(hidden=(40,), steps=300, batch_size=32),
    "paper": Settings(
        calendar="linear",
        offset=1.0,
        centred=False,
        transformer="monotone_net",
        transformer_options=(("units", 20), ("layers", 1)),
        levels=1,
        scheme="iid",
        learning_rate=1e-3,
        weight_decay=0.0,
        averaging=0.0,
        flat=True,
        unknown=0.0,
        marginals="rolled",
        weighting=1.0,
        steps=3000,
        recalibrate="none",
        refit=0.0,
    ),
}

MARGINALS = ("auto", "both", "direct", "rolled")
LEAST = {
    "context": 1, "embedding": 1, "levels": 1, "steps": 1, "batch_size": 1, "validation": 0,
    "weight_decay": 0.0, "offset": 0.0, "dropout": 0.0, "averaging": 0.0, "unknown": 0.0,
    "weighting": 0.0, "refit": 0.0, "rollout": 0,
}  # fmt: skip


def resolve(preset: str, **given: Any) -> Settings:
    """The settings of a preset with everything replaced that was given and is not None.

    Example:
        >>> resolve("fast", hidden=[16, 16], steps=None).hidden
        (16, 16)
    """
    known = {f.name for f in fields(Settings)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"unknown setting {unknown[0]!r}; settings are {', '.join(sorted(known))}.")
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    settings = replace(lookup(preset, PRESETS, "preset"), **changes)
    for name, least in LEAST.items():
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least:g}, got {value!r}.")
    lookup(settings.marginals, dict.fromkeys(MARGINALS), "kind of marginals")
    lookup(settings.calendar, dict.fromkeys(CALENDARS), "calendar")
    if not settings.learning_rate > 0 or not settings.dropout < 1 or not settings.averaging < 1:
        raise ValueError("learning_rate must be positive, dropout and averaging below 1.")
    if not settings.hidden or min(settings.hidden) < 1:
        raise ValueError(f"hidden must name sizes >= 1, got {settings.hidden}.")
    if settings.rollout == 1:
        raise ValueError("rollout must be 0 or at least 2 paths, got 1.")
    if settings.lags is not None and any(lag < 1 for lag in settings.lags):
        raise ValueError(f"lags must be at least 1 step, got {settings.lags}.")
    return settings
