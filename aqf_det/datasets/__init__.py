"""Data sets and pipeline steps, registered with mmdet on import."""

from .checked import DatasetNotFoundError
from .coco import CocoDetectionDataset
from .corruptions import CorruptImage, corrupt_image
from .hidden_side import HiddenSideTruth, hidden_side_truth, read_hidden_sides
from .image_split import ImageSplit
from .transforms import (
    CorruptSampleError,
    Letterbox,
    LoadCheckedImage,
    ObjectPreservingCrop,
    ObjectPreservingTranslate,
    PackWeightedDetInputs,
    WeightedMixUp,
    to_original_pixels,
)
from .voc import VOCDetectionDataset

__all__ = [
    "CocoDetectionDataset",
    "CorruptImage",
    "CorruptSampleError",
    "DatasetNotFoundError",
    "HiddenSideTruth",
    "ImageSplit",
    "Letterbox",
    "LoadCheckedImage",
    "ObjectPreservingCrop",
    "ObjectPreservingTranslate",
    "PackWeightedDetInputs",
    "VOCDetectionDataset",
    "WeightedMixUp",
    "corrupt_image",
    "hidden_side_truth",
    "read_hidden_sides",
    "to_original_pixels",
]
