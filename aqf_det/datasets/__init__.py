"""Data sets and pipeline steps, registered with mmdet on import."""

from .demo_scenes import generate_demo_dataset
from .hidden_side import HiddenSideTruth, hidden_side_truth, read_hidden_sides
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
from .voc import DatasetNotFoundError, VOCDetectionDataset

__all__ = [
    "CorruptSampleError",
    "DatasetNotFoundError",
    "HiddenSideTruth",
    "Letterbox",
    "LoadCheckedImage",
    "ObjectPreservingCrop",
    "ObjectPreservingTranslate",
    "PackWeightedDetInputs",
    "VOCDetectionDataset",
    "WeightedMixUp",
    "generate_demo_dataset",
    "hidden_side_truth",
    "read_hidden_sides",
    "to_original_pixels",
]
