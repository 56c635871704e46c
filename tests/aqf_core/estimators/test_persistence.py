"""Saved models come back bit for bit; changed or foreign files are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from aqf_core import estimators as est
from aqf_core.model_files import read, write

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 2, (80, 2))
Y = RNG.poisson(1 + X[:, 0]).astype(float)
OPTIONS: dict[str, Any] = {"members": 2, "unbinned": 0.5, "steps": 8, "random_state": 0}
MODELS = [
    est.QuantileFlowRegressor(**OPTIONS, hidden=[16], recalibrate="spline"),
    est.CDFFlowRegressor(**OPTIONS, recalibrate="isotonic", support=[0, None]),
    est.GaussianRegressor(**OPTIONS, objective="crps"),
    est.MixtureDensityRegressor(**OPTIONS, components=3, recalibrate="conformal"),
    est.QuantileGridRegressor(**OPTIONS, n_levels=19),
    est.PoissonRegressor(**OPTIONS),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_round_trip(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model.fit(X, Y).save(path)
    again = type(model).load(path)
    assert again.get_params() == model.get_params()
    levels = [0.001, 0.1, 0.5, 0.9]
    assert np.array_equal(again.predict_quantiles(X, levels), model.predict_quantiles(X, levels))
    assert np.array_equal(again.predict_cdf(X, Y), model.predict_cdf(X, Y))


def test_round_trip_of_joint_models_and_frames(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    frame = pd.DataFrame({"a": X[:, 0], "b": pd.Categorical(np.where(X[:, 1] > 1, "hi", "lo"))})
    targets = pd.DataFrame({"one": Y, "two": Y + X[:, 1]})
    for kind in (est.QuantileFlowRegressor, est.GaussianMRFRegressor):
        model = kind(**OPTIONS, recalibrate="spline").fit(frame, targets)
        model.save(path)
        again = est.DistributionRegressor.load(path)
        expected = model.sample(frame, 3, random_state=1)
        pd.testing.assert_frame_equal(again.sample(frame, 3, random_state=1), expected)
        assert list(again.feature_names_in_) == ["a", "b"]


def test_round_trip_of_a_classifier(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    labels = np.where(Y > 1, "many", "few")
    model = est.CDFFlowClassifier(**OPTIONS, order=["few", "many"]).fit(X, labels)
    model.save(path)
    again = est.CDFFlowClassifier.load(path)
    assert np.array_equal(again.predict(X), model.predict(X))
    with pytest.raises(est.ModelFileError, match="holds a CDFFlowClassifier, not a Distribution"):
        est.DistributionRegressor.load(path)


def test_pickled_by_joblib(tmp_path: Path) -> None:
    model = est.QuantileFlowRegressor(**OPTIONS).fit(X, Y)
    joblib.dump(model, tmp_path / "model.joblib")
    assert np.array_equal(joblib.load(tmp_path / "model.joblib").predict(X), model.predict(X))


def change_header(data: bytes, old: str, new: str) -> bytes:
    """Replace text in the JSON header of a safetensors file."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"]["aqf_estimator"] = header["__metadata__"]["aqf_estimator"].replace(
        old, new
    )
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def test_tampering_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    est.QuantileFlowRegressor(**OPTIONS).fit(X, Y).save(path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-5] ^= 1
    for bad in (bytes(flipped), change_header(good, '"members": 2', '"members": 3')):
        path.write_bytes(bad)
        with pytest.raises(est.ModelFileError, match="changed after it had been saved"):
            est.QuantileFlowRegressor.load(path)
    for bad in (good[:-9], b"not a model", b""):
        path.write_bytes(bad)
        with pytest.raises(est.ModelFileError, match="not a readable model file"):
            est.QuantileFlowRegressor.load(path)


def test_files_of_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    est.GaussianRegressor(members=4, unbinned=0.0, steps=2).fit(X, Y).save(path)
    header, tensors = read(path)
    del header["settings"]["unbinned"]  # as if it was written before that setting existed
    write(path, header, tensors)
    with pytest.raises(est.ModelFileError, match="do not fit its settings; .* Fit the model again"):
        est.GaussianRegressor.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(est.ModelFileError, match="not written by an estimator"):
        est.QuantileFlowRegressor.load(path)
    with pytest.raises(FileNotFoundError, match="no model file"):
        est.QuantileFlowRegressor.load(tmp_path / "missing")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    model = est.GaussianRegressor("fast", steps=np.int64(2), hidden=np.array([4]))
    model.fit(X, Y).save(tmp_path / "settings_of_numpy_are_fine")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        model.save(tmp_path / "none" / "model")


def test_unfitted_models_cannot_be_saved(tmp_path: Path) -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        est.QuantileFlowRegressor().save(tmp_path / "model")
