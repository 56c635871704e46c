"""GluonTS's DeepAR in the same run, when it is installed."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..forecasting import SeriesSet

__all__ = ["fit_gluonts"]

Array = NDArray[np.float64]

STEPS, BATCH, PER_EPOCH = 600, 64, 50
Draw = Callable[[SeriesSet, NDArray[np.int64], NDArray[np.int64], int], Array]


def fit_gluonts(data: SeriesSet, horizon: int, context: int, steps: int | None, seed: int) -> Draw:
    """Train GluonTS's DeepAR with an LSTM of equal size for as many steps, on the CPU.

    Its inputs are its own: default lags and time features of the frequency, the name of the series
    as a category with an embedding of 20, mean scaling, Student's t as output.

    Returns:
        (series, index, origins, n) -> paths (W, n, H).
    """
    import lightning.pytorch as lightning
    from gluonts.torch import DeepAREstimator

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(seed, verbose=False)
    frequency = str(data.frequency)
    count = steps or STEPS
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        estimator = DeepAREstimator(
            freq=frequency,
            prediction_length=horizon,
            context_length=context,
            num_layers=3,
            hidden_size=40,
            dropout_rate=0.1,
            num_feat_static_cat=1,
            cardinality=[len(data)],
            embedding_dimension=[20],
            batch_size=BATCH,
            num_batches_per_epoch=min(PER_EPOCH, count),
            trainer_kwargs={
                "max_epochs": max(1, count // PER_EPOCH),
                "accelerator": "cpu",
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "logger": False,
                "default_root_dir": folder,
            },
        )
        entries = [_entry(data, i, len(values)) for i, values in enumerate(data.values)]
        predictor = estimator.train(entries)

    def draw(
        series: SeriesSet, index: NDArray[np.int64], origins: NDArray[np.int64], n: int
    ) -> Array:
        windows = [_entry(series, i, int(t)) for i, t in zip(index, origins, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forecasts = predictor.predict(windows, num_samples=n)
            return np.stack([forecast.samples for forecast in forecasts]).astype(np.float64)

    return draw


def _entry(data: SeriesSet, i: int, length: int) -> dict[str, Any]:
    import pandas as pd

    return {
        "target": data.values[i][:length].astype(np.float32),
        "start": pd.Period(pd.Timestamp(data.starts[i]), freq=str(data.frequency)),
        "feat_static_cat": np.array([i]),
    }
