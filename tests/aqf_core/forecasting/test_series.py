"""Series in every accepted form, and one clear sentence for what cannot be used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from aqf_core.errors import UnknownNameError
from aqf_core.forecasting import Frequency, SeriesError, read_series
from aqf_core.forecasting.calendar import calendar_features
from aqf_core.forecasting.frequency import infer_frequency, parse_frequency

HOURS = pd.date_range("2024-01-01", periods=6, freq="h")


def wide() -> pd.DataFrame:
    return pd.DataFrame({"a": np.arange(6.0), "b": 10 + np.arange(6.0)}, HOURS)


def long() -> pd.DataFrame:
    return wide().rename_axis("when").reset_index().melt("when", var_name="who", value_name="kw")


@pytest.mark.parametrize(
    ("series", "names"),
    [
        (wide(), ["a", "b"]),
        (wide().rename_axis("when").reset_index(), ["a", "b"]),
        (long(), ["a", "b"]),
        (long().sample(frac=1, random_state=0).sort_values("when"), ["a", "b"]),
        ({"a": wide()["a"], "b": wide()["b"]}, ["a", "b"]),
        (wide().to_numpy().T, [0, 1]),
        (list(wide().to_numpy().T), [0, 1]),
        (wide().to_period("h"), ["a", "b"]),
    ],
)
def test_the_same_series_in_every_form(series: Any, names: list[Any]) -> None:
    data = read_series(series)
    assert sorted(data.names) == names and str(data.frequency) == "h"
    order = np.argsort([str(n) for n in data.names])
    assert np.array_equal(np.stack(data.values)[order], wide().to_numpy().T)


def test_numbers_may_name_the_series_of_a_long_frame() -> None:
    frame = long().replace({"who": {"a": 3, "b": 7}}).infer_objects()
    frame["who"] = frame["who"].astype(int)
    assert read_series(frame).names == [3, 7]
    wordy = frame.assign(note="x", more=1.0)
    named = {"id": "who", "time": "when", "value": "kw"}
    assert read_series(wordy, columns=named).names == [3, 7]
    with pytest.raises(SeriesError, match="say which with columns"):
        read_series(wordy)


def test_rows_left_out_are_missing_values_and_lengths_may_differ() -> None:
    frame = long().drop(index=[2, 6])
    data = read_series(frame, freq="h")
    assert np.isnan(data.values[0][2]) and len(data.values[1]) == 5
    late = wide()
    late.loc[late.index[:2], "b"] = np.nan
    assert read_series(late).lengths.tolist() == [6, 4]


@pytest.mark.parametrize(
    ("name", "lags", "context"),
    [
        ("h", (24, 48, 168), 168),
        ("15min", (96, 192, 672), 336),
        ("D", (7, 14, 28), 49),
        ("W-SUN", (52,), 26),
        ("MS", (12, 24), 24),
        ("QE", (4, 8), 8),
        ("10s", (360, 720, 2520), 336),
    ],
)
def test_lags_and_context_follow_from_the_frequency(
    name: str, lags: tuple[int, ...], context: int
) -> None:
    frequency = parse_frequency(name)
    assert (frequency.lags(), frequency.context()) == (lags, context)


@pytest.mark.parametrize("name", ["h", "30min", "D", "W", "MS", "ME", "QS", "YE"])
def test_grids_agree_with_pandas(name: str) -> None:
    stamps = pd.date_range("2023-11-30", periods=9, freq=name).to_numpy()
    frequency = infer_frequency(stamps)
    assert frequency == parse_frequency(name)
    assert np.array_equal(frequency.range(stamps[0], 9), stamps.astype("datetime64[s]"))
    assert frequency.steps_between(stamps[0], stamps).tolist() == list(range(9))


@pytest.mark.parametrize("kind", ["cyclic", "linear"])
def test_calendar_knows_hour_weekday_and_month(kind: str) -> None:
    hour = Frequency(seconds=3600)
    stamps = hour.range(np.datetime64("2024-01-01"), 24 * 400)
    features = calendar_features(hour, stamps, 0, kind)
    assert np.abs(features).max() < 3
    cycle = features[:, 1:]
    assert np.array_equal(cycle[0], cycle[24 * 7])  # the same hour of the same weekday
    assert not np.allclose(cycle[0], cycle[24]) and not np.allclose(cycle[0], cycle[24 * 7 * 26])
    assert not calendar_features(hour, stamps, 0, kind, month=False)[24 * 180, -1]


def frame_with(stamps: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": np.arange(float(len(stamps)))}, pd.DatetimeIndex(stamps))


@pytest.mark.parametrize(
    ("series", "said"),
    [
        (frame_with([*HOURS[:3], HOURS[3] + pd.Timedelta("17min")]), "irregular"),
        (frame_with([HOURS[0], HOURS[1], HOURS[1], HOURS[2]]), "twice"),
        (frame_with(HOURS[::-1]), "not in order"),
        (frame_with(HOURS[:2]), "too few to tell the frequency"),
        (pd.DataFrame({"a": [1.0, 2.0]}), "no time stamps"),
        (wide().assign(c="x"), "not numeric"),
        (wide().assign(c=np.nan), "no value at all"),
        (pd.DataFrame(), "empty"),
        ([1.0, "x"], "must be numbers"),
        ([[1.0, np.inf]], "infinite"),
        (np.zeros((2, 2, 2)), "array (T,) or (S, T)"),
        ([], "array (T,) or (S, T)"),
        ({}, "no series"),
        ({"a": wide()["a"], "b": wide()["b"].asfreq("D")}, "frequencies"),
    ],
)
def test_one_sentence_for_bad_series(series: Any, said: str) -> None:
    with pytest.raises(SeriesError) as error:
        if said == "frequencies":
            series["b"] = pd.Series(1.0, pd.date_range("2024", periods=5, freq="D"))
        read_series(series)
    text = str(error.value)
    assert said in text and "\n" not in text and text.endswith(".")


def test_unknown_frequency() -> None:
    with pytest.raises(UnknownNameError, match="unknown frequency 'often'"):
        read_series([1.0, 2.0], freq="often")


def test_covariates_for_all_or_for_each() -> None:
    both = np.arange(16.0).reshape(8, 2)
    shared = read_series(wide(), both).covariates
    assert shared is not None and [c.shape for c in shared] == [(8, 2), (8, 2)]
    index = pd.date_range(HOURS[0] - pd.Timedelta("2h"), periods=10, freq="h")
    dated = pd.DataFrame({"t": np.arange(10.0)}, index)
    aligned = read_series(wide(), dated).covariates
    assert aligned is not None and aligned[0][0] == 2.0
    named = read_series(wide(), {"a": np.zeros(7), "b": np.ones(9)}).covariates
    assert named is not None and named[1].shape == (9, 1)


@pytest.mark.parametrize(
    ("covariates", "said"),
    [
        (np.zeros(3), "have 3 steps, but the series has 6"),
        ({"a": np.zeros(7)}, "no entry for series 'b'"),
        ([np.zeros(7)], "covariates for 1"),
        ([np.zeros(7), np.zeros((7, 2))], "same number of covariates"),
        (np.full(8, np.nan), "missing or infinite"),
        (np.zeros((2, 2, 2)), "(steps, covariates)"),
    ],
)
def test_one_sentence_for_bad_covariates(covariates: Any, said: str) -> None:
    with pytest.raises(SeriesError) as error:
        read_series(wide(), covariates)
    assert said in str(error.value)
