"""Finds a missing or incompatible package before it fails in a place that does not say why."""

import importlib
import importlib.util

from aqf_det.compat.errors import INSTALL_COMMAND, DetectionStackError

# Module -> versions that the patches of this package are written for, first included, last not.
SUPPORTED = {
    "mmengine": ("0.10.0", "0.11.0"),
    "mmcv": ("2.0.0", "2.2.0"),
    "mmdet": ("3.3.0", "3.4.0"),
}


def check_environment() -> None:
    """Raise one clear sentence when the detection stack cannot work as installed.

    Raises:
        DetectionStackError: torchvision, mmengine, mmcv, mmdet or pycocotools is missing,
            torchvision does not fit torch, OpenCV does not load, or a version is outside
            :data:`SUPPORTED`.
    """
    for module in ("torchvision", *SUPPORTED, "pycocotools"):
        if _is_missing(module):
            raise DetectionStackError(
                f"aqf_det needs {module}, which is not installed: run {INSTALL_COMMAND}"
            )
    _check_torchvision()
    _check_opencv()
    for module, (first, last) in SUPPORTED.items():
        _check_version(module, first, last)


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ImportError:
        return True


def _check_torchvision() -> None:
    import torch

    try:
        import torchvision.ops

        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except Exception as error:  # a build for another torch fails in many ways, some when called
        raise DetectionStackError(
            f"The installed torchvision does not work with torch {torch.__version__} ({error}): "
            f"run {INSTALL_COMMAND}"
        ) from error


def _check_opencv() -> None:
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise DetectionStackError(
            f"OpenCV does not load ({error}): on a machine without the libraries of a desktop run "
            "pip install --force-reinstall --no-deps opencv-python-headless -c constraints.txt"
        ) from error


def _check_version(module: str, first: str, last: str) -> None:
    from mmengine.utils import digit_version

    # Importing mmdet checks mmcv's version by an assertion, so mmcv has to be judged before it.
    version = importlib.import_module(module).__version__
    if not digit_version(first) <= digit_version(version) < digit_version(last):
        raise DetectionStackError(
            f"aqf_det needs {module} >= {first}, < {last}, but {module} {version} is installed: "
            f"run pip uninstall -y {module}, then {INSTALL_COMMAND}"
        )
