"""The ``flow=dict(...)`` of a head, checked once and by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from aqf_core.errors import UnknownNameError

KINDS = ("gaussian", "quantile", "cdf")
DEPENDENCES = ("independent", "autoregressive")
GAUSSIAN_LOSSES = ("kl_pixel", "kl", "nll", "crps")


def _choose(name: str, value: str, table: Sequence[str]) -> None:
    if value not in table:
        raise UnknownNameError(f"unknown {name} {value!r}; choose from {', '.join(table)}.")


def _settle(values: dict[str, Any], name: str, only: Any, reason: str) -> None:
    """Fill in what leaves no choice; a config that asks for something else is refused."""
    if values.setdefault(name, only) != only:
        raise ValueError(
            f"flow {name}={values[name]!r} is impossible: {reason}; leave it out, "
            "or inherit with _delete_=True."
        )


@dataclass(frozen=True)
class FlowOptions:
    """What a box's distribution is and how it is trained.

    Attributes:
        kind: ``"gaussian"``, ``"quantile"`` (QFR: the flow is a quantile function trained by the
            quantile loss) or ``"cdf"`` (CDFR: the flow is a CDF trained by the CRPS).
        base: Loss of the trunk's own Gaussian in stage 1: ``"kl_pixel"`` (as published: SmoothL1 of
            pixel residuals inside the KL loss), ``"kl"`` (the same in cells), ``"nll"`` or
            ``"crps"`` (both well specified).
        branch: Whether a branch with layers of its own is trained in stage 2. Always true for
            flows; for a Gaussian it adds an affine flow on the frozen trunk, trained by ``loss``.
        loss: Objective of the branch: ``"kl"`` (SmoothL1 of residuals in stage-1 standard
            deviations), ``"nll"`` or ``"crps"`` for a Gaussian; flows use their own.
        transformer: Name of the monotone map (see ``aqf_core.transformers``).
        dependence: ``"independent"`` or ``"autoregressive"`` (one joint flow of the four sides).
        transformer_options: Passed to the transformer.
        width: Width of the branch's layers.
        hidden: Hidden layers of the conditioner.
        levels: Levels per example at which the training integral is evaluated.
        borders: Whether the branch is told how far each side lies from the border of the picture.
            Objects that the border cuts end exactly there, so near it errors are skewed.
    """

    kind: str = "gaussian"
    base: str = "kl_pixel"
    branch: bool = False
    loss: str = ""
    transformer: str = "spline"
    dependence: str = "independent"
    transformer_options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 128
    hidden: Sequence[int] = (128,)
    levels: int = 16
    borders: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, Any] | FlowOptions) -> FlowOptions:
        """Check a config's ``flow=dict(...)`` and fill in what follows from the kind."""
        if isinstance(options, FlowOptions):
            return options
        known = {f.name for f in fields(cls)}
        for name in options:
            _choose("flow option", name, sorted(known))
        values = dict(options)
        kind = values.setdefault("kind", "gaussian")
        _choose("flow kind", kind, KINDS)
        _choose("dependence", values.get("dependence", "independent"), DEPENDENCES)
        if kind == "gaussian":
            _settle(values, "transformer", "affine", "a Gaussian is an affine flow")
            if not values.get("branch", False):
                _settle(values, "dependence", "independent", "only a branch (branch=True) is joint")
                # Without a branch the one Gaussian there is is the trunk's.
                loss = values.setdefault("loss", values.get("base", "kl_pixel"))
                values.setdefault("base", loss)
                if loss != values["base"]:
                    raise ValueError(
                        f"a Gaussian without a branch is trained by base={values['base']!r}; set "
                        f"branch=True to train another one by loss={loss!r} on the frozen trunk."
                    )
            values.setdefault("loss", "crps")
            _choose("Gaussian loss", values["loss"], GAUSSIAN_LOSSES)
            if values.get("branch", False) and values["loss"] == "kl_pixel":
                raise ValueError(
                    "a Gaussian branch knows no pixels: train it by 'kl', 'nll' or 'crps', got "
                    "'kl_pixel'."
                )
        else:
            _settle(values, "branch", True, "a flow is a branch of the trunk")
            own = "quantile" if kind == "quantile" else "crps"
            _settle(values, "loss", own, f"kind={kind!r} is trained by it")
        _choose("base loss", values.setdefault("base", "kl_pixel"), GAUSSIAN_LOSSES)
        return cls(**values)

    @property
    def signature(self) -> str:
        """What a checkpoint must agree on, e.g. ``"quantile/spline/independent"``."""
        if not self.branch:
            return "gaussian"
        borders = "/borders" if self.borders else ""
        return f"{self.kind}/{self.transformer}/{self.dependence}{borders}"
