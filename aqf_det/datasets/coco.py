"""COCO with the same treatment of missing and damaged files as VOC."""

from __future__ import annotations

import json
from pathlib import Path

from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS

from .checked import CheckedSamples, DatasetNotFoundError
from .transforms import CorruptSampleError

EXPECTED_TREE = """\
{root}/
    annotations/instances_train2017.json, instances_val2017.json
    train2017/000000000009.jpg ...
    val2017/000000000139.jpg ..."""
HOW_TO_GET = (
    "Get train2017.zip, val2017.zip and annotations_trainval2017.zip from https://cocodataset.org, "
    "unpack them in a folder named coco, and name the folder around it with --data-root or the "
    "environment variable AQF_DATA (default: data)."
)


@DATASETS.register_module()
class CocoDetectionDataset(CheckedSamples, CocoDataset):
    """mmdet's COCO data set that says what is missing and survives damaged images.

    Args:
        on_corrupt: See :class:`CheckedSamples`.
        **kwargs: As for ``mmdet.CocoDataset``.
    """

    def load_data_list(self) -> list[dict]:
        """As upstream, after a look at whether the files are there."""
        for needed in (self.ann_file, self.data_prefix.get("img")):
            if needed and not Path(needed).exists():
                tree = EXPECTED_TREE.format(root=Path(self.data_root or "."))
                raise DatasetNotFoundError(
                    f"{needed} does not exist. Expected tree:\n{tree}\n{HOW_TO_GET}"
                )
        try:
            records: list[dict] = super().load_data_list()
        except (json.JSONDecodeError, KeyError, AssertionError) as error:
            raise CorruptSampleError(
                f"{self.ann_file} is no COCO annotation file: {error!r}"
            ) from error
        return records
