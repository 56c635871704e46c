"""Model parts, registered with mmdet on import."""

from .assigner import Assignment, ScaleCentreAssigner
from .backbone import TappedMobileNetV2
from .box_branch import BoxBranch
from .box_distribution import BoxDistribution, SidePredictive
from .box_flow import BoxFlow
from .checkpoint_kind import CheckpointKindError
from .detector import FlowDetection, FlowDetector
from .flow_bbox_head import FlowBBoxHead
from .flow_head import FlowHead
from .flow_options import FlowOptions
from .neck import SeparableYOLONeck
from .prediction_options import PredictionOptions, resolve_levels
from .side_delta_coder import SideDeltaBBoxCoder
from .stock_detectors import FlowSingleStageDetector, FlowTwoStageDetector
from .stock_flow import PooledFlowHead
from .yolo_head import FlowYOLOHead

__all__ = [
    "Assignment",
    "BoxBranch",
    "BoxDistribution",
    "BoxFlow",
    "CheckpointKindError",
    "FlowBBoxHead",
    "FlowDetection",
    "FlowDetector",
    "FlowHead",
    "FlowOptions",
    "FlowSingleStageDetector",
    "FlowTwoStageDetector",
    "FlowYOLOHead",
    "PooledFlowHead",
    "PredictionOptions",
    "ScaleCentreAssigner",
    "SeparableYOLONeck",
    "SideDeltaBBoxCoder",
    "SidePredictive",
    "TappedMobileNetV2",
    "resolve_levels",
]
