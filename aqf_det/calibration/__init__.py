"""Calibration with held-out boxes: recalibrated distributions and guaranteed coverage."""

from .box_calibration import BoxCalibration, CalibrationMismatchError
from .conformal import ConformalSides
from .recalibrated_boxes import RecalibratedBoxes

__all__ = ["BoxCalibration", "CalibrationMismatchError", "ConformalSides", "RecalibratedBoxes"]
