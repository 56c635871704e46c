"""Saved forecasters forecast the same; foreign files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from aqf_core.datasets import simulate_loads
from aqf_core.forecasting import (
    DeepARForecaster,
    Forecaster,
    MQRNNForecaster,
    NotFittedError,
    QuantileFlowForecaster,
)
from aqf_core.model_files import ModelFileError

SMALL: dict[str, Any] = {
    "steps": 6, "hidden": (8,), "batch_size": 4, "context": 48, "lags": (24,), "random_state": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [
        QuantileFlowForecaster(horizon=12, **SMALL),
        QuantileFlowForecaster("paper", horizon=12, **SMALL),
        DeepARForecaster(horizon=12, distribution="student-t", **SMALL),
        MQRNNForecaster(horizon=12, **SMALL),
    ],
    ids=["flow", "paper", "student-t", "mqrnn"],
)
def test_a_loaded_model_forecasts_the_same(model: Forecaster, tmp_path: Path) -> None:
    index = pd.date_range("2024-01-01", periods=24 * 20, freq="h")
    frame = pd.DataFrame(simulate_loads(3, len(index)).T, index, ["a", "b", "c"])
    holidays = np.random.default_rng(0).random(len(index) + 12)
    path = tmp_path / "model.safetensors"
    model.fit(frame, holidays).save(path)
    again = type(model).load(path)
    assert np.array_equal(again.predict(20).samples, model.predict(20).samples)
    table = model.predict_quantiles([0.1, 0.9])
    pd.testing.assert_frame_equal(again.predict_quantiles([0.1, 0.9]), table)
    newer = frame.iloc[:-5]
    expected = model.predict(20, newer, holidays).samples
    assert np.array_equal(again.predict(20, newer, holidays).samples, expected)
    assert isinstance(Forecaster.load(path), type(model))
    assert again.predict(20, covariates=np.zeros(len(holidays))).shape == (3, 20, 12)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(NotFittedError):
        MQRNNForecaster().save(path)
    with pytest.raises(FileNotFoundError, match="no model file"):
        MQRNNForecaster.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelFileError, match="not a readable model file"):
        MQRNNForecaster.load(path)
    MQRNNForecaster(horizon=12, **SMALL).fit(simulate_loads(2, 300)).save(path)
    with pytest.raises(ModelFileError, match="holds a MQRNNForecaster"):
        QuantileFlowForecaster.load(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="checksum"):
        MQRNNForecaster.load(path)
