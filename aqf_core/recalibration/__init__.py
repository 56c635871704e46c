r"""Recalibration: repair a predictive distribution with held-out observations.

If the PIT values \(F(y)\) of held-out data are not uniform, the predictions are miscalibrated in a
way that is known and can be undone. A recalibration is an increasing map m of the base variable
\(z = \Phi^{-1}(F(y))\), fitted so that \(m(z)\) is standard normal; the repaired distribution has
the CDF \(\Phi(m(\Phi^{-1}(F(x))))\). It keeps the whole interface of `ScalarPredictive`.

| name        | map                               | density | good for                         |
|-------------|-----------------------------------|---------|----------------------------------|
| `isotonic`  | piecewise linear through the data | yes     | thousands of observations        |
| `spline`    | smooth, shrunk towards no change  | yes     | tens to hundreds of observations |
| `conformal` | steps at the data                 | no      | guaranteed coverage, any sample  |
"""

from __future__ import annotations

from typing import Any

from ..validation import lookup
from .base import RecalibratedPredictive, Recalibration
from .conformal import ConformalRecalibration
from .isotonic import IsotonicRecalibration, isotonic_regression
from .spline import SplineRecalibration

__all__ = [
    "RECALIBRATIONS",
    "ConformalRecalibration",
    "IsotonicRecalibration",
    "RecalibratedPredictive",
    "Recalibration",
    "SplineRecalibration",
    "isotonic_regression",
    "make_recalibration",
]

RECALIBRATIONS: dict[str, type[Recalibration]] = {
    "conformal": ConformalRecalibration,
    "isotonic": IsotonicRecalibration,
    "spline": SplineRecalibration,
}


def make_recalibration(recalibration: str | Recalibration, **options: Any) -> Recalibration:
    """A recalibration by name ("isotonic", "spline", "conformal"), or the object given.

    Example:
        >>> make_recalibration("isotonic", knots=20).knots
        20
    """
    if isinstance(recalibration, Recalibration):
        if options:
            raise TypeError(
                f"options {sorted(options)} were given together with a recalibration object; "
                "set them when building the object."
            )
        return recalibration
    return lookup(recalibration, RECALIBRATIONS, "recalibration")(**options)
