"""Coverage of conformal statements by simulation: the guarantee, also with few held-out boxes."""

from __future__ import annotations

import math

import pytest
import torch

from aqf_core.errors import LevelError
from aqf_det.calibration import ConformalSides

DRAWS = 2000


def base_values(n: int, generator: torch.Generator) -> torch.Tensor:
    """Dependent, biased, skewed and overconfident: nothing a guarantee may rely on."""
    common = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return 2 * common + own.exp() * torch.tensor([1.0, 3.0, 0.5, 1.0]) - 1


def coverage_of(n: int, coverage: float, statement: str) -> tuple[float, float]:
    """Share of draws in which one new box is covered, and the standard error of this share."""
    generator = torch.Generator().manual_seed(n)
    one = torch.zeros(1, dtype=torch.long)
    hits = []
    for _ in range(DRAWS):
        z = base_values(n + 1, generator)
        sides, new = ConformalSides((z[:-1],)), z[-1]
        if statement == "interval":
            low, high = sides.interval(coverage, one)[0]
            hits.append(((low <= new) & (new <= high)).double().mean())
        else:
            options = {"band": {}, "outer": {"inner": False}, "inner": {"outer": False}}[statement]
            low, high = sides.band(coverage, one, **options)[0]
            hits.append(((low <= new) & (new <= high)).all().double())
    found = torch.stack(hits)
    return float(found.mean()), float(found.std()) / math.sqrt(DRAWS)


@pytest.mark.parametrize(
    ("n", "coverage", "statement", "excess"),
    [
        (19, 0.9, "interval", 0.0),  # as few as a statement of 90 % needs
        (100, 0.8, "interval", 2 / 101),
        (19, 0.5, "band", None),
        (200, 0.9, "band", 0.06),
        (200, 0.9, "outer", 0.04),
        (200, 0.9, "inner", 0.04),
    ],
)
def test_stated_coverage_is_kept(
    n: int, coverage: float, statement: str, excess: float | None
) -> None:
    """At least the stated coverage within binomial error, and not much more."""
    share, error = coverage_of(n, coverage, statement)
    assert share >= coverage - 3 * error
    if excess is not None:
        assert share <= coverage + excess + 3 * error


def test_bounds_of_whole_boxes_treat_sides_by_their_own_errors() -> None:
    """A side with errors a hundred times larger does not widen the bounds of the others."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2000, 4, generator=generator)
    one = torch.zeros(1, dtype=torch.long)
    plain = ConformalSides((z,)).band(0.9, one)[0]
    mixed = ConformalSides((z * torch.tensor([1.0, 1.0, 1.0, 100.0]),)).band(0.9, one)[0]
    torch.testing.assert_close(mixed[:, :3], plain[:, :3])
    torch.testing.assert_close(mixed[:, 3], 100 * plain[:, 3])


def test_groups_have_bounds_of_their_own() -> None:
    z = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    sides = ConformalSides((z, 10 * z))
    bounds = sides.interval(0.9, torch.tensor([1, 0, 1]))
    torch.testing.assert_close(bounds[0], 10 * bounds[1])
    torch.testing.assert_close(bounds[0], bounds[2])
    assert sides.interval(0.9, torch.zeros(0, dtype=torch.long)).shape == (0, 2, 4)


def test_what_cannot_be_guaranteed_is_refused() -> None:
    z, one = torch.randn(18, 4), torch.zeros(1, dtype=torch.long)
    with pytest.raises(LevelError, match="at least 19 calibration observations, got 18"):
        ConformalSides((z,)).interval(0.9, one)
    with pytest.raises(LevelError, match="18 held-out boxes cannot guarantee"):
        ConformalSides((z,)).band(0.9, one)
