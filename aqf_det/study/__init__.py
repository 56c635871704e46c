"""Many ways to predict sides on one frozen detector, trained, calibrated, tested and compared."""

from .plan import Run, StudySize, planned_runs
from .run import Study

__all__ = ["Run", "Study", "StudySize", "planned_runs"]
