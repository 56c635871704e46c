"""Plots draw the numbers they are given, on the axes they are given, without pyplot."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from aqf_core import plots
from aqf_core.errors import LevelError, NonFiniteError, ShapeError

RNG = np.random.default_rng(0)
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
N = 400
Y = RNG.normal(size=N)
TABLE = np.tile(stats.norm.ppf(LEVELS), (N, 1))

CALLS: dict[str, tuple[Any, ...]] = {
    "calibration_curve": (LEVELS, TABLE, Y),
    "fan_chart": (LEVELS, TABLE[:24]),
    "pit_histogram": (stats.norm.cdf(Y),),
    "quantile_curves": (Y, LEVELS, TABLE),
    "width_vs_error": (np.abs(Y) + 1, np.abs(Y)),
}


def _pixels(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="raw", dpi=40)
    return buffer.getvalue()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_new_and_given_axes_arrays_and_tensors(name: str) -> None:
    draw = getattr(plots, name)
    ax = draw(*CALLS[name], title="a title")
    assert ax.get_title() == "a title" and ax.get_xlabel() and ax.get_ylabel()
    given, untouched = (Figure(figsize=(5, 4), layout="constrained").subplots() for _ in "ab")
    tensors = [torch.tensor(a) for a in CALLS[name]]
    assert draw(*tensors, ax=given, title="a title") is given
    assert _pixels(given.figure) == _pixels(ax.figure) != _pixels(untouched.figure)


def test_fan_chart_draws_bands_median_truth_and_history() -> None:
    ax = plots.fan_chart(LEVELS, TABLE[:5], y=Y[:5], x=np.arange(5) + 10, history=Y[5:8])
    assert len(ax.collections) == 2
    lines = {line.get_label(): line for line in ax.lines}
    assert np.allclose(lines["median"].get_ydata(), 0)
    assert np.allclose(lines["observed"].get_ydata(), Y[:5])
    assert np.allclose(lines["history"].get_xdata(), [7, 8, 9])
    outer = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert outer.min() == pytest.approx(-1.645, abs=1e-3)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "90% interval" in labels and "50% interval" in labels


def test_calibration_curve_draws_frequencies_and_compares_models() -> None:
    ax = plots.calibration_curve(LEVELS, TABLE, Y, label="good")
    plots.calibration_curve(LEVELS, 0.1 * TABLE, Y, ax=ax, label="narrow")
    diagonal, good, narrow = ax.lines
    assert np.allclose(diagonal.get_ydata(), [0, 1])
    expected = [(Y <= q).mean() for q in TABLE[0]]
    assert np.allclose(good.get_ydata()[1:-1], expected)
    assert narrow.get_ydata()[1] > 0.4
    assert "error 0." in good.get_label() and len(ax.collections) == 1


def test_pit_histogram_bars_integrate_to_one() -> None:
    ax = plots.pit_histogram(np.array([0.05, 0.15, 0.15, 0.95]), bins=10)
    heights = [bar.get_height() for bar in ax.patches]
    assert np.allclose(np.array(heights)[[0, 1, 9]], [2.5, 5.0, 2.5])
    assert sum(heights) == pytest.approx(10)


def test_quantile_curves_sort_their_input() -> None:
    ax = plots.quantile_curves([2.0, 0.0, 1.0], [0.5], [[20.0], [0.0], [10.0]], y=[1.0, 2.0, 3.0])
    assert np.allclose(ax.lines[0].get_xdata(), [0, 1, 2])
    assert np.allclose(ax.lines[0].get_ydata(), [0, 10, 20])
    assert len(ax.collections) == 1


def test_width_vs_error_groups_by_width() -> None:
    width = np.array([4.0, 1.0, 2.0, 3.0])
    ax = plots.width_vs_error(width, np.array([-8.0, 1.0, 3.0, 6.0]), bins=2)
    assert np.allclose(ax.lines[0].get_xdata(), [1.5, 3.5])
    assert np.allclose(ax.lines[0].get_ydata(), [2.0, 7.0])


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"\(T, 5\)"):
        plots.fan_chart(LEVELS, TABLE[:, :3])
    with pytest.raises(ShapeError):
        plots.quantile_curves(Y[:3], LEVELS, TABLE)
    with pytest.raises(ShapeError, match="same size"):
        plots.width_vs_error(Y, Y[:3])
    with pytest.raises(LevelError):
        plots.pit_histogram([1.5])
    with pytest.raises(NonFiniteError):
        plots.pit_histogram([np.nan])


def test_matplotlib_is_imported_late_and_pyplot_never() -> None:
    code = (
        "import sys; from aqf_core import plots; assert 'matplotlib' not in sys.modules; "
        "plots.pit_histogram([0.5]); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
