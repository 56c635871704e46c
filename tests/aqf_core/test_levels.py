"""Every level scheme is uniform, stays inside (0, 1), and has the variance it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aqf_core import levels
from aqf_core.errors import LevelError, UnknownNameError
from aqf_core.losses import gaussian_crps, quantile_loss

RANDOM = ["iid", "stratified", "lattice"]


@pytest.mark.parametrize("name", sorted(levels.LEVELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_dtype_and_open_interval(name: str, dtype: torch.dtype) -> None:
    u = levels.LevelStrategy(name, 5)((2, 3), dtype=dtype)
    assert u.shape == (2, 3, 5) and u.dtype == dtype
    many = levels.LevelStrategy(name, 1000)((1000,), dtype=torch.float32)
    assert many.min() > 0 and many.max() < 1


@pytest.mark.parametrize("name", RANDOM)
def test_each_level_is_uniform(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    u = levels.LevelStrategy(name, 4)((20_000,), generator=generator, dtype=torch.float64)
    pooled = u.flatten().sort().values
    grid = (torch.arange(pooled.numel(), dtype=torch.float64) + 0.5) / pooled.numel()
    assert (pooled - grid).abs().max() < 0.008  # Kolmogorov distance
    again = levels.LevelStrategy(name, 4)(
        (20_000,), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    assert torch.equal(u, again)


def test_stratified_fills_every_cell_and_lattice_shares_its_shift() -> None:
    u = levels.stratified_levels(8, (100,))
    assert torch.equal((u * 8).floor(), torch.arange(8.0).expand(100, 8))
    shift = (levels.lattice_levels(8, (100,), dtype=torch.float64) * 8) % 1
    assert torch.allclose(shift, shift[:, :1].expand_as(shift))
    assert shift[:, 0].unique().numel() == 100


def _gradient_error(name: str, n: int) -> torch.Tensor:
    """Mean squared error of the gradient of the quantile loss of a Gaussian."""
    x = torch.linspace(-2.5, 2.5, 21, dtype=torch.float64)
    loc, log_scale = (torch.zeros(2000, 21, dtype=torch.float64, requires_grad=True) for _ in "ab")
    noisy = quantile_loss(
        lambda u: loc[..., None] + log_scale.exp()[..., None] * torch.special.ndtri(u),
        x.expand(2000, 21),
        levels.LevelStrategy(name, n),
        reduction="sum",
        generator=torch.Generator().manual_seed(0),
    )
    exact = gaussian_crps(loc, log_scale.exp(), x, reduction="sum") / 2
    difference = torch.autograd.grad(noisy - exact, (loc, log_scale))
    return torch.stack([g.square().mean() for g in difference]).sum()


@pytest.mark.parametrize(
    ("n", "stratified", "lattice"), [(4, 0.34, 0.28), (8, 0.21, 0.146), (16, 0.13, 0.075)]
)
def test_variance_reduction(n: int, stratified: float, lattice: float) -> None:
    iid = _gradient_error("iid", n)
    assert _gradient_error("stratified", n) / iid == pytest.approx(stratified, rel=0.15)
    assert _gradient_error("lattice", n) / iid == pytest.approx(lattice, rel=0.15)


def test_clamp_has_finite_quantiles_at_the_ends() -> None:
    for dtype in (torch.float32, torch.float64):
        u = levels.clamp_levels(torch.tensor([0.0, 1.0], dtype=dtype))
        assert torch.isfinite(torch.special.ndtri(u)).all()


def test_make_levels() -> None:
    assert levels.make_levels() == levels.LevelStrategy("lattice", 8)
    assert levels.make_levels(3).n == levels.make_levels(np.int64(3)).n == 3  # type: ignore[arg-type]
    strategy = levels.LevelStrategy("iid", 2)
    assert levels.make_levels(strategy) is strategy
    given = levels.make_levels(torch.tensor([0.1, 0.5]))
    assert given((4,), dtype=torch.float64).dtype == torch.float64
    assert given.n == 2 and levels.make_levels(given) is given


@pytest.mark.parametrize("bad", [0, -1, torch.tensor(0.5), torch.tensor([1.5]), 0.5])
def test_bad_levels(bad: object) -> None:
    with pytest.raises(LevelError):
        levels.make_levels(bad)  # type: ignore[arg-type]


def test_unknown_strategy_lists_names() -> None:
    with pytest.raises(UnknownNameError, match="fixed, iid, lattice, stratified"):
        levels.make_levels("sobol")
