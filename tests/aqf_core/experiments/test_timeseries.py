"""The forecasting experiments: data, scores, the tool from start to report, several processes."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from aqf_core.datasets import DataError, load_time_series, read_time_series, simulate_loads
from aqf_core.experiments.forecast_report import _goals, _published, draw_bands
from aqf_core.experiments.forecast_scoring import (
    LEVELS,
    path_energy,
    score_points,
    score_table,
    share_of_wins,
    table_of,
)
from aqf_core.experiments.forecasting import METHODS, Study, Windows, frequency_of
from aqf_core.forecasting import SeriesError

ROOT = Path(__file__).resolve().parents[3]
QUICK = ["--steps", "8", "--paths", "20", "--windows", "2", "--context", "48"]


def tool() -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "tools/run_timeseries.py"))["main"]
    return main


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    index = pd.date_range("2024-01-01", periods=24 * 18, freq="h", name="when")
    frame = pd.DataFrame(simulate_loads(3, len(index)).T, index, ["a", "b", "c"])
    frame.iloc[50:60, 1] = np.nan
    path = tmp_path / "loads.csv"
    frame.to_csv(path)
    return path


@pytest.mark.slow
def test_a_file_is_forecast_once_and_reported(
    csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs/t.jsonl"
    command = ["--csv", str(csv), "--seeds", "2", "--output", str(output), *QUICK]
    assert tool()(command) == 0
    rows = records(output)
    kinds = {(r["method"], r["seed"]) for r in rows}
    assert len(rows) == len(kinds) == 9  # three networks twice, three naive methods
    own = next(r for r in rows if r["method"] == "aqf")
    assert len(own["by_step"]) == 24 and len(own["crps_series"]) == 3
    assert own["test_windows"] == 6 and 0 <= own["raw"]["coverage_80"] <= 1
    page = (tmp_path / "runs/t.md").read_text()
    for word in ("| AQF |", "| median of 7 days |", "AQF better", "80 % raw", "loads.csv"):
        assert word in page, word
    assert (tmp_path / "runs/t_loads.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert tool()(command) == 0
    assert records(output) == rows and "9 of 9 results are known" in capsys.readouterr().err
    # A page of what is known, also if more was asked for.
    more = [*command, "--seeds", "5", "--report-only", "--markdown", str(tmp_path / "page.md")]
    assert tool()(more) == 0
    assert records(output) == rows and "| AQF |" in (tmp_path / "page.md").read_text()
    with pytest.raises(DataError, match="holds no result"):
        tool()([*more, "--output", str(tmp_path / "none.jsonl")])


def test_simulated_loads_stand_in_where_there_are_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AQF_DATA", str(tmp_path))
    output = tmp_path / "t.jsonl"
    command = ["--dataset", "electricity", "--methods", "mqrnn", "--seeds", "1", *QUICK]
    assert tool()([*command, "--output", str(output)]) == 0
    assert "simulated loads stand in for electricity" in capsys.readouterr().err
    assert {r["dataset"] for r in records(output)} == {"simulated"}
    with pytest.raises(DataError, match="which does not exist; say where the data are"):
        tool()([*command, "--output", str(output), "--data-root", str(tmp_path)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dataset", "csv"], "go together"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--paths", "3"], "--paths must be at least 20"),
        (["--horizon", "-1"], "--horizon must be at least 1"),
    ],
)
def test_contradictions_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool()(options)
    assert stopped.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_train_one_model(csv: Path, tmp_path: Path) -> None:
    output = tmp_path / "t.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(ROOT / "tools/run_timeseries.py"), "--csv", str(csv), "--methods", "aqf"]
    command += ["--seeds", "1", "--output", str(output), *QUICK]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = records(output)
    assert [r["method"] for r in rows] == ["aqf", "seasonal-naive", "weekly-naive", "median-naive"]
    assert rows[0]["trained_steps"] == 4  # both processes together see as many windows as one
    assert np.isfinite(rows[0]["nd"])


def test_files_are_read_wide_or_long(csv: Path, tmp_path: Path) -> None:
    wide = read_time_series(csv)
    long = tmp_path / "long.csv"
    frame = pd.read_csv(csv).melt("when", var_name="who", value_name="kw")
    frame.to_csv(long, index=False)
    again = read_time_series(long)
    assert list(again.frame.columns) == ["a", "b", "c"]
    assert np.array_equal(again.frame.to_numpy(), wide.frame.to_numpy(), equal_nan=True)
    assert wide.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no regular table"),
        ("a,b\n1,2\n3,4\n", "no column of time stamps"),
        ("t,a\n2024-01-01,1\n2024-01-01,2\n2024-01-02,3\n", "twice"),
        ("t,a,b\n2024-01-01,1,x\n2024-01-02,2,y\n", "not numeric"),
    ],
)
def test_one_sentence_for_bad_files(text: str, said: str, tmp_path: Path) -> None:
    from aqf_core.errors import AQFError
    from aqf_core.forecasting import read_series

    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(AQFError, match=said):
        read_series(read_time_series(path).frame)
    with pytest.raises(DataError, match="there is no file"):
        read_time_series(tmp_path / "absent.csv")


def test_the_wind_data_are_countries_of_the_last_year(tmp_path: Path) -> None:
    (tmp_path / "timeseries").mkdir()
    index = pd.date_range("2016-01-01", periods=9000, freq="h", name="utc_timestamp")
    names = ["DE_wind_onshore_generation_actual", "DE_50hertz_wind_onshore_generation_actual"]
    names += ["DK_wind_offshore_generation_actual", "FR_wind_onshore_generation_actual"]
    frame = pd.DataFrame(np.arange(36000.0).reshape(9000, 4), index, names)
    frame.to_csv(tmp_path / "timeseries/europe_power_system_wind.csv.gz")
    wind = load_time_series("wind", tmp_path)
    assert wind.frame.shape == (8760, 2) and list(wind.frame.columns) == ["DE", "FR"]
    assert "2 European countries" in wind.about


def test_scores_of_a_known_forecast() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random((400, 3))
    truth[0, 0] = np.nan
    table = np.tile(LEVELS, (400, 3, 1))
    scores = score_table(table, truth, np.repeat(np.arange(4), 100))
    assert scores["check_score"] == pytest.approx(1 / 12, rel=0.03)
    assert scores["nd"] == pytest.approx(0.5, rel=0.05)
    assert scores["coverage_80"] == pytest.approx(0.8, abs=0.03)
    assert scores["wql"] == pytest.approx(2 * scores["check_score"] / np.nanmean(truth))
    assert np.mean(scores["crps_series"]) == pytest.approx(1 / 6, rel=0.03)
    assert len(scores["by_origin"]) == 100
    paths = rng.random((400, 500, 3))
    drawn = score_table(table_of(paths), truth, np.repeat(np.arange(4), 100))
    assert drawn["check_score"] == pytest.approx(scores["check_score"], rel=0.01)
    together = np.repeat(rng.random((400, 500, 1)), 3, axis=2)
    assert path_energy(paths, truth) < path_energy(together, truth)
    assert score_points(truth, truth)["nd"] == 0
    assert share_of_wins(np.ones(3), np.array([1.2, 1.04, 0.9])) == (1 / 3, 1 / 3, 1 / 3)


def test_windows_apart_come_last_and_are_no_part_of_the_others() -> None:
    study = Study(load_time_series("simulated"), horizon=24, windows=5, apart=2)
    windows = Windows.of(study)
    later = windows.apart
    assert later is not None and len(windows.index) == 24 * 3 and len(later.index) == 24 * 2
    length = 24 * 70
    assert windows.origins[:3].tolist() == [length - 120, length - 96, length - 72]
    assert later.origins[:2].tolist() == [length - 48, length - 24]
    assert study.training(windows.data).lengths[0] == length - 120
    assert np.array_equal(windows.truth(back=24)[1], windows.truth()[0])
    naive = METHODS["seasonal-naive"].run(study, windows, 0)
    assert naive["nd"] > 0 and naive["later"]["nd"] > 0


def band(level: float) -> dict[str, Any]:
    low, mid, high = ([level + k] * 6 for k in (-1.0, 0.0, 1.0))
    return {"series": "a", "low": low, "mid": mid, "high": high, "truth": [level] * 6}


def test_the_legend_of_the_figure_lies_outside_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: drawn.append(figure))
    rows = [{"method": m, "bands": [band(1.0), band(5.0)]} for m in ("aqf", "deepar")]
    draw_bands(rows, tmp_path / "x.png")
    figure = drawn[0]
    figure.draw_without_rendering()
    (legend,) = figure.legends
    place = legend.get_window_extent()
    assert len(figure.axes) == 4 and not any(ax.get_legend() for ax in figure.axes)
    assert not any(place.overlaps(ax.get_window_extent()) for ax in figure.axes)
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "", "steps", "steps"]


def test_relative_differences_are_paired_by_seed() -> None:
    def record(method: str, seed: int, nd: float) -> dict[str, Any]:
        return {"method": method, "seed": seed, "nd": nd, "rmse": 1.0}

    rows = [record("aqf", 0, 0.9), record("aqf", 1, 1.1), record("seasonal-naive", 0, 1.0)]
    rows += [record("deepar", 0, 1.0), record("deepar", 1, 1.0)]
    text = _goals(rows)
    assert "| DeepAR | +0.0 ± 14.1 % | +0.0 ± 0.0 % | - |" in text
    assert "| one day before | +0.0 ± 14.1 % |" in text and "standard deviation" in text
    assert "±" not in _goals([rows[0], rows[3]])
    assert "-10.0 %" in _goals([rows[0], *rows[3:]])  # only the seeds that both have
    assert "| AQF | .098 | .723 | 88.02 |" in _published([{"dataset": "electricity"}])
    assert _published([{"dataset": "wind"}]) == ""


def monthly(tmp_path: Path, months: int) -> Path:
    index = pd.date_range("2015-01-31", periods=months, freq="ME", name="month")
    wave = 10 + 3 * np.sin(2 * np.pi * np.arange(months) / 12)
    frame = pd.DataFrame({"late": np.where(np.arange(months) < 60, np.nan, wave), "whole": wave})
    frame.index = index
    path = tmp_path / "sales.csv"
    frame.to_csv(path)
    return path


def test_monthly_files_are_read_in_months(tmp_path: Path) -> None:
    data = read_time_series(monthly(tmp_path, 120))
    assert frequency_of(data).context() == 24
    study = Study(data, horizon=12, context=24, windows=2)
    windows = Windows.of(study)
    weekly = METHODS["weekly-naive"].run(study, windows, 0)  # seven years before: of one series
    assert weekly["nd"] == pytest.approx(0, abs=1e-9)
    with pytest.raises(
        SeriesError, match=r"9 test windows .* 'late', .* choose at most 3 windows\."
    ):
        Windows.of(Study(data, horizon=12, context=24, windows=9))
    with pytest.raises(SeriesError, match=r"choose a smaller horizon\."):
        Windows.of(Study(data, horizon=40, context=24, windows=1))
