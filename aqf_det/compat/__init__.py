"""Makes mmdet 3.3, mmengine 0.10 and mmcv-lite 2.1 run on current PyTorch, nothing compiled.

One file per upstream fault, one function per file. Each states the fault, does nothing where the
fault is absent, and returns whether it was needed.
"""

from aqf_det.compat.checkpoint_contents import allow_runner_state
from aqf_det.compat.checkpoint_loading import load_weights_only
from aqf_det.compat.empty_batched_nms import accept_no_boxes
from aqf_det.compat.environment import check_environment
from aqf_det.compat.errors import (
    DetectionStackError,
    MissingOpError,
    UnreadableCheckpointError,
    UnsafeCheckpointError,
)
from aqf_det.compat.half_precision_nms import separate_classes_in_float32
from aqf_det.compat.package_metadata import replace_pkg_resources
from aqf_det.compat.quiet import hide_upstream_warnings
from aqf_det.compat.ssd_prediction import give_ssd_head_a_loss_cls

__all__ = [
    "DetectionStackError",
    "MissingOpError",
    "UnreadableCheckpointError",
    "UnsafeCheckpointError",
    "apply",
]


def apply() -> None:
    """Check the installed stack, then apply every patch that it needs. Harmless to repeat.

    Raises:
        DetectionStackError: A package is missing or incompatible; the message says what to install.
    """
    check_environment()
    # Imports torchvision, which check_environment has just vouched for.
    from aqf_det.compat.python_ops import provide_python_ops

    hide_upstream_warnings()
    provide_python_ops()
    replace_pkg_resources()
    allow_runner_state()
    load_weights_only()
    accept_no_boxes()
    separate_classes_in_float32()
    give_ssd_head_a_loss_cls()
