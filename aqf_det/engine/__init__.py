"""Training and testing: stages, schedule, mixed precision and the runs behind the tools."""

from .amp import CPUAmpOptimWrapper
from .schedule import RestartedCosineLR, RestartedMultiStepLR
from .stages import TwoStageHook

__all__ = ["CPUAmpOptimWrapper", "RestartedCosineLR", "RestartedMultiStepLR", "TwoStageHook"]
