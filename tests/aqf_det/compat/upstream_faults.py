"""Shows each upstream fault in an interpreter in which the patch for it was not applied.

Run as ``python upstream_faults.py GROUP``; prints one JSON object: fault -> what happened.
"""

import json
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


SSD_ANCHORS = {
    "type": "SSDAnchorGenerator",
    "scale_major": False,
    "input_size": 300,
    "basesize_ratio_range": (0.15, 0.9),
    "strides": [8, 16, 32, 64, 100, 300],
    "ratios": [[2], [2, 3], [2, 3], [2, 3], [2], [2]],
}


# Two identical boxes of a high class beside a large one of another: the second has to go.
HALF_PRECISION_BOXES = (
    [[0.0, 0.0, 512.0, 512.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]],
    [0.9, 0.8, 0.7],
    [0, 99, 99],
)


class MakeFolder:
    """Pickles to a command that makes a folder when it is unpickled without restriction."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def compat_without(*patches: str) -> None:
    """Apply the compatibility layer except for the named patches."""
    package = types.ModuleType("aqf_det")  # the real one would apply everything on import
    package.__path__ = [str(REPOSITORY / "aqf_det")]
    sys.modules["aqf_det"] = package
    from aqf_det import compat

    for patch in patches:
        assert callable(getattr(compat, patch))
        setattr(compat, patch, lambda: False)
    compat.apply()


def happens(action: Callable[[], object]) -> str:
    try:
        return f"returned {action()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def with_nothing_applied() -> dict[str, str]:
    import torch
    from mmengine.config import Config
    from mmengine.logging import HistoryBuffer
    from mmengine.runner import checkpoint
    from mmengine.utils import is_installed

    folder = tempfile.mkdtemp()
    torch.save({"history": HistoryBuffer([1.0], [1])}, f"{folder}/history.pth")
    torch.save({"weights": MakeFolder(f"{folder}/executed")}, f"{folder}/evil.pth")
    Path(folder, "config.py").write_text("_base_ = 'mmdet::_base_/default_runtime.py'")

    def import_ops() -> object:
        import mmcv.ops

        return mmcv.ops

    def load_evil_url() -> bool:
        checkpoint.load_url(f"file://{folder}/evil.pth", model_dir=f"{folder}/cache")
        return Path(folder, "executed").exists()

    def asks_for_weights_only() -> bool:
        seen: dict = {}
        real, torch.load = torch.load, lambda *args, **kwargs: seen.update(kwargs)
        checkpoint.load_from_local(f"{folder}/evil.pth", None)
        torch.load = real
        return "weights_only" in seen

    return {
        "import mmcv.ops": happens(import_ops),
        "is_installed": happens(lambda: is_installed("mmdet")),
        "inherit": happens(lambda: Config.fromfile(f"{folder}/config.py")),
        "load history": happens(lambda: checkpoint._load_checkpoint(f"{folder}/history.pth")),
        "load evil url": happens(load_evil_url),
        "asks for weights only": happens(asks_for_weights_only),
    }


def with_ops_only() -> dict[str, str]:
    compat_without(
        "accept_no_boxes",
        "separate_classes_in_float32",
        "give_ssd_head_a_loss_cls",
        "hide_upstream_warnings",
    )
    import torch
    from mmcv.ops import batched_nms
    from mmdet.models.dense_heads import AnchorHead, SSDHead

    def nms_of_nothing() -> object:
        return batched_nms(
            torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), {"iou_threshold": 0.5}
        )

    def nms_of_half_precision_boxes() -> list[int]:
        boxes, scores, classes = HALF_PRECISION_BOXES
        boxes, scores = (torch.tensor(x, dtype=torch.bfloat16) for x in (boxes, scores))
        return batched_nms(boxes, scores, torch.tensor(classes), {"iou_threshold": 0.5})[1].tolist()

    def deprecated_call() -> list[str]:
        head = AnchorHead(1, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            head.num_anchors  # noqa: B018
        return [str(warning.message) for warning in caught]

    return {
        "batched_nms": happens(nms_of_nothing),
        "half batched_nms": happens(nms_of_half_precision_boxes),
        "ssd": happens(lambda: SSDHead(anchor_generator=SSD_ANCHORS).loss_cls),
        "warnings": happens(deprecated_call),
    }


GROUPS = {"nothing": with_nothing_applied, "ops": with_ops_only}

if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    print(json.dumps(GROUPS[sys.argv[1]]()))
