"""Model parts, registered with mmdet on import."""

from .assigner import Assignment, ScaleCentreAssigner
from .backbone import TappedMobileNetV2
from .box_branch import BoxBranch
from .box_distribution import BoxDistribution, SidePredictive
from .box_flow import BoxFlow
from .checkpoint_kind import CheckpointKindError
from .detector import FlowDetector
from .flow_options import FlowOptions
from .neck import SeparableYOLONeck
from .prediction import PredictionOptions, resolve_levels
from .yolo_head import FlowYOLOHead

__all__ = [
    "Assignment",
    "BoxBranch",
    "BoxDistribution",
    "BoxFlow",
    "CheckpointKindError",
    "FlowDetector",
    "FlowOptions",
    "FlowYOLOHead",
    "PredictionOptions",
    "ScaleCentreAssigner",
    "SeparableYOLONeck",
    "SidePredictive",
    "TappedMobileNetV2",
    "resolve_levels",
]
