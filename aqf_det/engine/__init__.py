"""Training and testing: stages, schedule, mixed precision, logs and the runs behind the tools."""

from .amp import CPUAmpOptimWrapper
from .logs import BriefLogProcessor, CheckedVisualizationHook
from .schedule import RestartedCosineLR, RestartedMultiStepLR
from .stages import TwoStageHook

__all__ = [
    "BriefLogProcessor",
    "CPUAmpOptimWrapper",
    "CheckedVisualizationHook",
    "RestartedCosineLR",
    "RestartedMultiStepLR",
    "TwoStageHook",
]
