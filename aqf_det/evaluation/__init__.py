"""Evaluation of box distributions; importing registers the metrics with mmdet."""

from .bootstrap import Estimate
from .box_uncertainty_metric import BoxUncertaintyMetric
from .comparison import PairedDifference, common_pairs, paired_bootstrap
from .detection_ece import DetectionECEMetric, detection_ece
from .hidden_sides import HiddenSides, hidden_sides, paired_hidden_crps
from .matching import Matches, match_detections, pairwise_iou
from .pairs import BoxPairs, WrongDumpError
from .pdq_metric import PDQMetric
from .scores import PairScores, score_pairs
from .summary import Summary, summarise

__all__ = [
    "BoxPairs",
    "BoxUncertaintyMetric",
    "DetectionECEMetric",
    "Estimate",
    "HiddenSides",
    "Matches",
    "PDQMetric",
    "PairScores",
    "PairedDifference",
    "Summary",
    "WrongDumpError",
    "common_pairs",
    "detection_ece",
    "hidden_sides",
    "match_detections",
    "paired_bootstrap",
    "paired_hidden_crps",
    "pairwise_iou",
    "score_pairs",
    "summarise",
]
