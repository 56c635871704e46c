"""Checkpoints hold data: honest ones load, anything else is refused by name and never executed."""

import io
import os
import pickle
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.runner import load_checkpoint, save_checkpoint
from mmengine.runner.checkpoint import CheckpointLoader, _load_checkpoint

from aqf_det.compat import UnreadableCheckpointError, UnsafeCheckpointError
from aqf_det.compat.checkpoint_loading import weights_only


class Evil:
    """Pickles to a call."""

    def __init__(self, function, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


def evil_calls(marker: Path) -> dict[str, Evil]:
    return {
        "posix.mkdir": Evil(os.mkdir, str(marker)),
        "builtins.exec": Evil(exec, f"import os; os.mkdir({str(marker)!r})"),
        "builtins.eval": Evil(eval, f"__import__('os').mkdir({str(marker)!r})"),
        "builtins.getattr": Evil(getattr, OrderedDict, "fromkeys"),
        "argparse.Namespace": Evil(Namespace),
        "builtins.open": Evil(open, str(marker), "w"),
        "pickle.loads": Evil(pickle.loads, pickle.dumps(Evil(os.mkdir, str(marker)))),
    }


@pytest.mark.parametrize("name", evil_calls(Path("marker")))
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_any_other_object_is_refused_by_name_and_not_executed(name, zipped, tmp_path):
    marker, file = tmp_path / "executed", tmp_path / "evil.pth"
    content = {"state_dict": {"w": torch.zeros(1)}, "extra": evil_calls(marker)[name]}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    shown = name.rsplit(".", 1)[-1]
    with pytest.raises(UnsafeCheckpointError, match=shown) as caught:
        load_checkpoint(torch.nn.Linear(1, 1), str(file))
    assert str(file) in str(caught.value)
    assert "weights_only" not in str(caught.value)  # no advice to switch the protection off
    assert not marker.exists()


def test_the_real_getattr_is_never_reachable(tmp_path):
    """Even on the one allowed class, only its four statistics can be asked for."""
    for attribute in ("__init__", "__globals__", "__class__", "_set_default_statistics"):
        torch.save({"x": Evil(getattr, HistoryBuffer, attribute)}, tmp_path / "evil.pth")
        with pytest.raises(UnsafeCheckpointError, match=r"getattr"):
            _load_checkpoint(str(tmp_path / "evil.pth"))
    torch.save({"x": Evil(getattr, HistoryBuffer, "mean")}, tmp_path / "fine.pth")
    assert _load_checkpoint(str(tmp_path / "fine.pth"))["x"] is HistoryBuffer.mean


def test_an_object_array_cannot_smuggle_an_object_in(tmp_path):
    array = np.empty(1, dtype=object)
    array[0] = Evil(os.mkdir, str(tmp_path / "executed"))
    torch.save({"x": array}, tmp_path / "evil.pth")
    with pytest.raises(UnsafeCheckpointError):
        _load_checkpoint(str(tmp_path / "evil.pth"))
    assert not (tmp_path / "executed").exists()


def test_weights_only_is_asked_for_whatever_the_caller_says():
    seen = []
    load = weights_only(lambda source, **kwargs: seen.append(kwargs))
    load("file.pth")
    load("file.pth", map_location="cpu", weights_only=None)
    assert seen == [{"weights_only": True}, {"map_location": "cpu", "weights_only": True}]


def test_the_environment_variable_that_forces_unpickling_has_no_effect(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    marker, file = tmp_path / "executed", str(tmp_path / "evil.pth")
    torch.save({"x": Evil(os.mkdir, str(marker))}, file)
    with pytest.raises(UnsafeCheckpointError, match="mkdir"):
        _load_checkpoint(file)
    assert not marker.exists()
    with pytest.warns(UserWarning, match="forcing weights_only=False"):
        torch.load(file)  # what the variable does to code that does not ask
    assert marker.exists()


def test_every_loader_of_mmengine_goes_through_the_safe_load(monkeypatch, tmp_path):
    """The remote storages as well: their clients are replaced by local ones here."""
    marker = tmp_path / "executed"
    torch.save({"x": Evil(os.mkdir, str(marker))}, tmp_path / "evil.pth")
    data = (tmp_path / "evil.pth").read_bytes()

    class Storage:
        get = staticmethod(lambda _: data)

    module = "mmengine.runner.checkpoint."
    monkeypatch.setattr(module + "get_file_backend", lambda *_, **__: Storage())
    monkeypatch.setattr(module + "get_external_models", lambda: {"evil": "evil.pth"})
    monkeypatch.setattr(module + "get_deprecated_model_names", dict)
    monkeypatch.setattr(module + "_get_mmengine_home", lambda: str(tmp_path))
    for address in (str(tmp_path / "evil.pth"), "s3://bucket/evil.pth", "open-mmlab://evil"):
        with pytest.raises(UnsafeCheckpointError, match="mkdir"):
            CheckpointLoader.load_checkpoint(address)
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"this is not a checkpoint", b"\x80\x02}q\x00."])
def test_a_file_that_is_no_checkpoint_says_so(content, tmp_path):
    (tmp_path / "other.pth").write_bytes(content)
    with pytest.raises(UnreadableCheckpointError, match=r"other\.pth.*not written by torch\.save"):
        _load_checkpoint(str(tmp_path / "other.pth"))


def test_half_a_checkpoint_and_a_missing_one_say_so(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "whole.pth")
    whole = (tmp_path / "whole.pth").read_bytes()
    (tmp_path / "half.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableCheckpointError, match=r"half\.pth.*get the file again"):
        _load_checkpoint(str(tmp_path / "half.pth"))
    with pytest.raises(FileNotFoundError, match="absent"):
        _load_checkpoint(str(tmp_path / "absent.pth"))


def test_other_failures_keep_their_own_words():
    def load(source, **kwargs):
        raise RuntimeError("Attempting to deserialize object on a CUDA device")

    with pytest.raises(RuntimeError, match="CUDA device"):
        weights_only(load)("file.pth")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float64"])
def test_arrays_and_scalars_of_numbers_load(dtype, tmp_path):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    save_checkpoint({"array": array, "scalar": array[1, 2]}, str(tmp_path / "numbers.pth"))
    loaded = _load_checkpoint(str(tmp_path / "numbers.pth"))
    np.testing.assert_array_equal(loaded["array"], array)
    assert loaded["array"].dtype == array.dtype
    assert loaded["scalar"] == array[1, 2]


def test_nested_dataset_information_loads(tmp_path):
    meta = Config({"metainfo": {"classes": ("cat",), "source": {"years": [2007, 2012]}}}).metainfo
    save_checkpoint({"meta": {"dataset_meta": dict(meta)}}, str(tmp_path / "meta.pth"))
    loaded = _load_checkpoint(str(tmp_path / "meta.pth"))["meta"]["dataset_meta"]
    assert loaded == {"classes": ("cat",), "source": {"years": [2007, 2012]}}


def test_files_written_with_numpy_1_load():
    buffer = io.BytesIO()
    torch.save(
        {"history": HistoryBuffer([1.0, 2.0], [1, 1])}, buffer, _use_new_zipfile_serialization=False
    )
    older = buffer.getvalue().replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray")
    loaded = weights_only(torch.load)(io.BytesIO(older))
    assert loaded["history"].current() == 2.0
