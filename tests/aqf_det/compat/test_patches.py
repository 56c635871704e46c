"""Every patch: the fault without it, no fault with it, and nothing done where there is none."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from mmcv.ops import batched_nms
from mmdet.models.dense_heads import AnchorHead, SSDHead
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.runner import checkpoint
from mmengine.utils import get_installed_path, is_installed, package_utils

from aqf_det import compat
from aqf_det.compat.checkpoint_contents import allow_runner_state
from aqf_det.compat.checkpoint_loading import load_weights_only
from aqf_det.compat.empty_batched_nms import accept_no_boxes
from aqf_det.compat.half_precision_nms import separate_classes_in_float32
from aqf_det.compat.package_metadata import package2module, replace_pkg_resources
from aqf_det.compat.quiet import hide_upstream_warnings
from aqf_det.compat.ssd_prediction import give_ssd_head_a_loss_cls
from tests.aqf_det.compat import upstream_faults


def without_patches(group: str) -> dict[str, str]:
    """What happens in a fresh interpreter that applied only some or none of the patches."""
    command = [sys.executable, upstream_faults.__file__, group]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def unpatched() -> dict[str, str]:
    return without_patches("nothing")


@pytest.fixture(scope="module")
def only_ops() -> dict[str, str]:
    return without_patches("ops")


@pytest.mark.slow
def test_python_ops_make_mmcv_ops_importable(unpatched):
    assert unpatched["import mmcv.ops"] == "ModuleNotFoundError: No module named 'mmcv._ext'"
    assert batched_nms is not None  # imported above


@pytest.mark.slow
def test_packages_are_found_without_pkg_resources(unpatched, tmp_path):
    missing = "ModuleNotFoundError: No module named 'pkg_resources'"
    assert unpatched["is_installed"] == unpatched["inherit"] == missing

    assert is_installed("mmdet") and is_installed("mmcv-lite") and is_installed("json")
    assert not is_installed("no_such_package_anywhere")
    import mmcv
    import mmdet

    assert get_installed_path("mmdet") == str(Path(mmdet.__file__).parent)
    assert get_installed_path("mmcv-lite") == str(Path(mmcv.__file__).parent)
    assert package2module("mmcv-lite") == "mmcv"
    with pytest.raises(ModuleNotFoundError, match="no_such_package_anywhere"):
        get_installed_path("no_such_package_anywhere")

    child = tmp_path / "child.py"
    child.write_text("_base_ = 'mmdet::_base_/default_runtime.py'\nlog_level = 'ERROR'")
    config = Config.fromfile(child)
    assert config.default_scope == "mmdet" and config.log_level == "ERROR"
    assert get_config("mmdet::retinanet/retinanet_r50_fpn_1x_coco.py").model.type == "RetinaNet"


def test_pkg_resources_is_used_where_it_exists(monkeypatch, tmp_path):
    def upstream_is_installed(package):
        import pkg_resources

        return pkg_resources.get_distribution(package) is not None

    monkeypatch.setattr(package_utils, "is_installed", upstream_is_installed)
    (tmp_path / "pkg_resources.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert replace_pkg_resources() is False
    assert package_utils.is_installed is upstream_is_installed


def test_look_ups_that_do_not_ask_for_pkg_resources_are_left_alone(monkeypatch):
    repaired = lambda package: False  # noqa: E731
    monkeypatch.setattr(package_utils, "is_installed", repaired)
    assert replace_pkg_resources() is False
    assert package_utils.is_installed is repaired


@pytest.mark.slow
def test_log_history_can_be_loaded(unpatched, tmp_path):
    assert unpatched["load history"].startswith("UnpicklingError")
    assert "HistoryBuffer" in unpatched["load history"]
    from mmengine.logging import HistoryBuffer

    torch.save({"history": HistoryBuffer([1.0, 3.0], [1, 1])}, tmp_path / "history.pth")
    loaded = checkpoint._load_checkpoint(str(tmp_path / "history.pth"))
    assert loaded["history"].mean() == 2.0
    assert allow_runner_state() is False  # nothing left to allow


@pytest.mark.slow
def test_loaders_ask_for_weights_only(unpatched, tmp_path):
    assert unpatched["load evil url"] == "returned True"  # the file's command was executed
    assert unpatched["asks for weights only"] == "returned False"

    evil = upstream_faults.MakeFolder(str(tmp_path / "executed"))
    torch.save({"weights": evil}, tmp_path / "evil.pth")
    with pytest.raises(compat.UnsafeCheckpointError, match=r"mkdir"):
        checkpoint.load_url((tmp_path / "evil.pth").as_uri(), model_dir=str(tmp_path / "cache"))
    assert not (tmp_path / "executed").exists()
    assert load_weights_only() is False  # nothing left to replace


def test_loaders_that_ask_by_themselves_are_left_alone(monkeypatch):
    monkeypatch.setattr(checkpoint, "torch", torch)
    source = "torch.load(filename, weights_only=True)"
    monkeypatch.setattr("aqf_det.compat.checkpoint_loading.inspect.getsource", lambda _: source)
    assert load_weights_only() is False
    assert checkpoint.torch is torch


@pytest.mark.slow
def test_batched_nms_accepts_no_boxes(only_ops):
    assert only_ops["batched_nms"].startswith("RuntimeError: max()")
    empty = torch.zeros(0, 4), torch.zeros(0), torch.zeros(0)
    assert batched_nms(*empty, {"iou_threshold": 0.5})[0].shape == (0, 5)
    assert accept_no_boxes() is False  # it accepts them already


@pytest.mark.slow
def test_batched_nms_keeps_classes_apart_in_half_precision(only_ops):
    assert only_ops["half batched_nms"] == "returned [0, 1, 2]"
    boxes, scores, classes = map(torch.tensor, upstream_faults.HALF_PRECISION_BOXES)
    boxes, scores = boxes.bfloat16(), scores.bfloat16()
    assert batched_nms(boxes, scores, classes, {"iou_threshold": 0.5})[1].tolist() == [0, 1]
    assert separate_classes_in_float32() is False  # it is right already


@pytest.mark.slow
def test_ssd_heads_have_what_prediction_asks_for(only_ops):
    assert only_ops["ssd"].startswith("AttributeError: 'SSDHead' object has no attribute")
    assert SSDHead(anchor_generator=upstream_faults.SSD_ANCHORS).loss_cls is None
    assert give_ssd_head_a_loss_cls() is False  # it has one already


def test_an_ssd_head_with_a_loss_cls_of_its_own_is_left_alone(monkeypatch):
    def repaired_init(self):
        self.loss_cls = None

    monkeypatch.delattr(SSDHead, "loss_cls")
    monkeypatch.setattr(SSDHead, "__init__", repaired_init)
    assert give_ssd_head_a_loss_cls() is False
    assert "loss_cls" not in vars(SSDHead)


@pytest.mark.slow
def test_upstream_noise_is_hidden_and_nothing_else(only_ops):
    assert "`num_anchors` is deprecated" in only_ops["warnings"]
    head = AnchorHead(1, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert hide_upstream_warnings() is True
        assert hide_upstream_warnings() is False
        head.num_anchors  # noqa: B018
        warnings.warn("`torch.cuda.amp.autocast` in code of a user", FutureWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert [str(warning.message)[-9:] for warning in caught] == ["of a user", "hing else"]


def test_applying_twice_changes_nothing():
    finders, allowed = list(sys.meta_path), set(torch.serialization.get_safe_globals())
    loader, nms = checkpoint.load_url, batched_nms
    compat.apply()
    from mmcv.ops import batched_nms as nms_again

    assert sys.meta_path == finders
    assert set(torch.serialization.get_safe_globals()) == allowed
    assert checkpoint.load_url is loader and nms_again is nms
