"""What data sets do about damaged files: name them, then go on or stop, as configured."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.logging import MMLogger

from .transforms import CorruptSampleError


class DatasetNotFoundError(FileNotFoundError):
    """A data set that is not where the config says; the message shows the expected tree."""


class CheckedSamples:
    """Mixin for mmdet data sets whose pipeline loads with ``LoadCheckedImage``.

    ``on_corrupt="skip"`` names a damaged file once in a warning; a training image is replaced by
    another one, a test image becomes an empty one. ``"raise"`` stops with
    :class:`CorruptSampleError`.
    """

    def __init__(self, *, on_corrupt: str = "skip", **kwargs: Any) -> None:
        if on_corrupt not in ("skip", "raise"):
            raise ValueError(f"on_corrupt must be 'skip' or 'raise', got {on_corrupt!r}.")
        self.on_corrupt = on_corrupt
        self._named: set[str] = set()
        super().__init__(**kwargs)

    def prepare_data(self, idx: int) -> Any:
        """Run the pipeline; a damaged image gives None in training, an empty one at test time."""
        try:
            return super().prepare_data(idx)  # type: ignore[misc]
        except CorruptSampleError as error:
            self.report_corrupt(str(error))
        if not self.test_mode:  # type: ignore[attr-defined]
            return None
        info = self.get_data_info(idx)  # type: ignore[attr-defined]
        # The annotated size with no objects: length and order of the split stay as samplers expect.
        shape = (info["height"], info["width"])
        blank = np.full((*shape, 3), 128, dtype=np.uint8)
        info.update(instances=[], img=blank, img_shape=shape, ori_shape=shape)
        for transform in self.pipeline.transforms:  # type: ignore[attr-defined]
            if not isinstance(transform, LoadImageFromFile):
                info = transform(info)
        return info

    def report_corrupt(self, message: str) -> None:
        """Refuse a damaged file, or name it once per process and go on."""
        if self.on_corrupt == "raise":
            raise CorruptSampleError(message)
        if message not in self._named:
            self._named.add(message)
            MMLogger.get_current_instance().warning(f"skipped: {message}")
