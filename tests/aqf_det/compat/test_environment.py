"""A missing or incompatible package ends in one sentence that says what to install."""

import subprocess
import sys
from pathlib import Path

import mmcv
import mmdet
import mmengine
import pytest
import torchvision

from aqf_det.compat import DetectionStackError
from aqf_det.compat.environment import check_environment

INSTALL = r'run pip install -e "\.\[det\]" -c constraints\.txt$'


def test_the_installed_stack_is_accepted():
    check_environment()


@pytest.mark.parametrize("module", ["torchvision", "mmengine", "mmcv", "mmdet", "pycocotools"])
def test_a_missing_package_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DetectionStackError, match=f"^aqf_det needs {module}, .*{INSTALL}"):
        check_environment()


@pytest.mark.parametrize(
    ("module", "version"),
    [(mmcv, "2.2.0"), (mmcv, "1.7.2"), (mmdet, "2.28.0"), (mmdet, "3.4.0"), (mmengine, "0.9.1")],
)
def test_an_incompatible_version_is_named(module, version, monkeypatch):
    monkeypatch.setattr(module, "__version__", version)
    sentence = (
        f"^aqf_det needs {module.__name__} >= .* but {module.__name__} {version} is installed"
    )
    with pytest.raises(DetectionStackError, match=sentence + r".*pip install -e"):
        check_environment()


def test_a_torchvision_for_another_torch_is_named(monkeypatch):
    def not_loaded(*_):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(torchvision.ops, "nms", not_loaded)
    sentence = "torchvision does not work with torch .*::nms does not exist"
    with pytest.raises(DetectionStackError, match=f"{sentence}.*{INSTALL}"):
        check_environment()


def test_an_opencv_that_does_not_load_is_told_the_other_build(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(DetectionStackError, match=r"OpenCV does not load \(.*cv2.*headless -c "):
        check_environment()


@pytest.mark.slow
def test_importing_the_package_without_torchvision_ends_in_that_sentence():
    code = "import sys; sys.modules['torchvision'] = None; import aqf_det"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "aqf_det needs torchvision, which is not installed" in last
    assert last.startswith("aqf_det.compat.errors.DetectionStackError")


@pytest.mark.slow
def test_importing_the_package_and_upstreams_deprecated_calls_are_quiet():
    code = "import aqf_det, mmdet.apis, mmengine.runner, mmdet.models.dense_heads as heads\n"
    code += "heads.AnchorHead(1, 1).num_anchors"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
